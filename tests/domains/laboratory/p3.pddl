; A clean swap of acid and base between the flask and a beaker, by way of a spare one.
(define (problem laboratory-3)
  (:domain laboratory)
  (:objects b1 b2 - beaker f1 - flask)
  (:init (= (total-cost) 0) (holds b1 acid) (holds f1 base))
  (:goal (and (holds f1 acid) (holds b1 base) (not (or (holds f1 base) (holds b1 acid)))))
  (:metric minimize (total-cost)))
