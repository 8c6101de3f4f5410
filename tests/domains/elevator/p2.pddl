; Guests ride without staff, and Ben is fetched before the guest is served.
(define (problem elevator-2)
  (:domain elevator)
  (:requirements :adl :typing :constraints)
  (:objects f1 f2 f3 - floor ada - guest ben cleo - staff)
  (:init (above f2 f1) (above f3 f1) (above f3 f2)
         (lift-at f1)
         (waits ada f3) (wants ada f1) (waits ben f1) (wants ben f3) (waits cleo f2) (wants cleo f3))
  (:goal (and (forall (?p - person) (served ?p)) (not (lift-at f1))))
  (:constraints (and
    (forall (?g - guest ?s - staff) (always (not (and (aboard ?g) (aboard ?s)))))
    (sometime-before (served ada) (aboard ben)))))
