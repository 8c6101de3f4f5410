; Two locks in a row with a narrow reach between; gates shut behind the barge, and the upper lock is left low.
(define (problem canal-3)
  (:domain canal)
  (:requirements :adl :typing :action-costs :constraints)
  (:objects low mid high - reach mill weir - lock dora - barge)
  (:init (= (total-cost) 0) (gate mill low) (gate mill mid) (gate weir mid) (gate weir high) (narrow mid)
         (level mill low) (level weir mid) (at dora low))
  (:goal (at dora weir))
  (:constraints (and
    (always (imply (open mill mid) (not (open weir mid))))
    (forall (?l - lock) (sometime-after (exists (?r - reach) (open ?l ?r)) (forall (?r - reach) (not (open ?l ?r)))))
    (forall (?r - reach) (at end (not (open weir ?r))))))
  (:metric minimize (total-cost)))
