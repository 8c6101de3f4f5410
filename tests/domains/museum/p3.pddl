; Three rooms in a row: the office beyond the gallery must be looked at, and each door is locked at most once.
(define (problem museum-3)
  (:domain museum)
  (:requirements :adl :typing :constraints)
  (:objects masters - gallery archive - office d1 d2 - door brass iron - key)
  (:init (guard-in lobby) (joins d1 lobby masters) (joins d2 masters archive) (fits brass d1) (fits iron d2)
         (carried brass) (hangs-in iron archive) (lit archive))
  (:goal (and (checked archive) (or (armed masters) (locked d2)) (guard-in lobby)))
  (:constraints (and
    (forall (?d - door) (at-most-once (locked ?d)))
    (sometime-after (checked archive) (not (lit archive)))
    (at end (forall (?k - key) (carried ?k))))))
