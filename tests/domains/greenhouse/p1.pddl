; Two beds, one of them sprouting; all seeds must be out of the store, and something harvested.
(define (problem greenhouse-1)
  (:domain greenhouse)
  (:objects north south basil cress)
  (:init (bed north) (bed south) (seed basil) (seed cress) (in-store cress)
         (sown north basil) (sprouting north) (vent-open))
  (:goal (and (exists (?s) (harvested ?s)) (forall (?s) (imply (seed ?s) (not (in-store ?s)))))))
