; A single bed: sow, sprout and ripen, the vent shut in the end.
(define (problem greenhouse-3)
  (:domain greenhouse)
  (:objects bench thyme)
  (:init (bed bench) (seed thyme) (in-store thyme) (vent-open))
  (:goal (and (ripe bench) (not (vent-open)) (not (watered bench)))))
