; Salt into the dish, everything else empty.
(define (problem laboratory-1)
  (:domain laboratory)
  (:objects b1 - beaker f1 - flask d1 - dish)
  (:init (= (total-cost) 0) (holds b1 acid) (holds f1 base) (stoppered f1))
  (:goal (and (holds d1 salt) (forall (?v - (either beaker flask)) (not (exists (?l - liquid) (holds ?v ?l))))))
  (:metric minimize (total-cost)))
