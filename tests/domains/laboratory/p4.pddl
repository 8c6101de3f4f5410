; The dish is etched with acid once, and never while a beaker is hot.
(define (problem laboratory-4)
  (:domain laboratory)
  (:requirements :adl :typing :action-costs :constraints)
  (:objects b1 b2 - beaker d1 - dish)
  (:init (= (total-cost) 0) (holds b1 acid) (holds b2 acid) (holds b2 base))
  (:goal (and (exists (?d - dish) (holds ?d salt)) (imply (hot b1) (hot b2))))
  (:constraints (and
    (sometime (holds d1 acid))
    (at-most-once (holds d1 acid))
    (always (imply (exists (?v - beaker) (hot ?v)) (not (exists (?d - dish) (holds ?d acid))))))))
