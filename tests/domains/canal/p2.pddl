; The same with the lock full, but the barge goes first, and the upper gate is opened once only.
(define (problem canal-2)
  (:domain canal)
  (:requirements :adl :typing :action-costs :constraints)
  (:objects low high - reach mill - lock dora - barge swift - yacht)
  (:init (= (total-cost) 0) (gate mill low) (gate mill high) (level mill high) (at dora low) (at swift high))
  (:goal (and (at dora high) (at swift low)))
  (:constraints (and
    (forall (?b - barge ?y - yacht) (sometime-before (at ?y low) (at ?b high)))
    (at-most-once (open mill high))
    (sometime (forall (?r - reach) (not (open mill ?r))))))
  (:metric minimize (total-cost)))
