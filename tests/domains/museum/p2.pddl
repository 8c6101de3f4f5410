; Two galleries, lit one at a time, and dark once they are armed.
(define (problem museum-2)
  (:domain museum)
  (:requirements :adl :typing :constraints)
  (:objects masters moderns - gallery d1 d2 - door brass - key)
  (:init (guard-in lobby) (joins d1 lobby masters) (joins d2 moderns lobby) (fits brass d1) (fits brass d2)
         (hangs-in brass lobby) (lit lobby) (locked d2) (checked moderns))
  (:goal (and (forall (?g - gallery) (checked ?g)) (exists (?g - gallery) (armed ?g)) (not (lit masters))))
  (:constraints (and
    (forall (?g - gallery) (always (imply (armed ?g) (not (lit ?g)))))
    (always (not (and (lit masters) (lit moderns))))
    (sometime (armed masters)))))
