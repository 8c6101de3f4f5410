; Air after every warm spell, warm once only, and no bed stays wet under an open vent.
(define (problem greenhouse-2)
  (:domain greenhouse)
  (:requirements :adl :constraints)
  (:objects north south basil cress)
  (:init (bed north) (bed south) (seed basil) (seed cress) (in-store basil)
         (sown south cress) (sprouting south) (vent-open))
  (:goal (and (harvested cress) (or (sprouting north) (ripe north))))
  (:constraints (and
    (sometime-after (warm) (vent-open))
    (at-most-once (warm))
    (forall (?b) (always (not (and (watered ?b) (vent-open))))))))
