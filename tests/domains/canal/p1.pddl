; One lock, a barge up and a yacht down.
(define (problem canal-1)
  (:domain canal)
  (:objects low high - reach mill - lock dora - barge swift - yacht)
  (:init (= (total-cost) 0) (gate mill low) (gate mill high) (level mill low) (at dora low) (at swift high))
  (:goal (and (at dora high) (at swift low)))
  (:metric minimize (total-cost)))
