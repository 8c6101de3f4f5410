; Three people, no rules but the reserved floor.
(define (problem elevator-1)
  (:domain elevator)
  (:objects f1 f2 f3 f4 - floor ada - guest ben cleo - staff)
  (:init (above f2 f1) (above f3 f1) (above f4 f1) (above f3 f2) (above f4 f2) (above f4 f3)
         (lift-at f1) (reserved f4)
         (waits ada f2) (wants ada f4) (waits ben f1) (wants ben f3) (waits cleo f3) (wants cleo f1))
  (:goal (forall (?p - person) (served ?p))))
