; The top floor is visited once only, after Ben has got in, and the lift ends where it began.
(define (problem elevator-3)
  (:domain elevator)
  (:requirements :adl :typing :constraints)
  (:objects f1 f2 f3 - floor ada bea - guest ben - staff)
  (:init (above f2 f1) (above f3 f1) (above f3 f2)
         (lift-at f2) (reserved f1)
         (waits ada f3) (wants ada f1) (waits bea f1) (wants bea f3) (waits ben f2) (wants ben f3))
  (:goal (and (served ada) (served bea) (served ben)))
  (:constraints (and
    (at-most-once (lift-at f3))
    (at end (lift-at f2))
    (forall (?g - guest) (sometime-before (served ?g) (aboard ben))))))
