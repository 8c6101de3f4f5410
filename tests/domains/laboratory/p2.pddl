; As before, but flasks must not be heated, and whatever was hot is rinsed in the end.
(define (problem laboratory-2)
  (:domain laboratory)
  (:requirements :adl :typing :action-costs :constraints)
  (:objects b1 - beaker f1 - flask d1 - dish)
  (:init (= (total-cost) 0) (holds b1 acid) (holds f1 base) (stoppered f1))
  (:goal (holds d1 salt))
  (:constraints (and
    (forall (?f - flask) (always (not (hot ?f))))
    (always (imply (hot b1) (not (holds b1 acid))))
    (forall (?v - (either beaker flask)) (sometime-after (hot ?v) (forall (?l - liquid) (not (holds ?v ?l)))))))
  (:metric minimize (total-cost)))
