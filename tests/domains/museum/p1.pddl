; One gallery off the lobby, the key in the lobby.
(define (problem museum-1)
  (:domain museum)
  (:objects masters - gallery d1 - door brass - key)
  (:init (guard-in lobby) (joins d1 lobby masters) (fits brass d1) (hangs-in brass lobby) (lit lobby))
  (:goal (and (forall (?g - gallery) (armed ?g)) (guard-in lobby))))
