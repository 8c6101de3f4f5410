; An elevator that stops: whoever has arrived gets out, and whoever waits on that floor gets in.
(define (domain elevator)
  (:requirements :adl :typing)
  (:types floor person - object
          guest staff - person)
  (:predicates
    (above ?high ?low - floor)
    (lift-at ?f - floor)
    (waits ?p - person ?f - floor)
    (wants ?p - person ?f - floor)
    (aboard ?p - person)
    (served ?p - person)
    (reserved ?f - floor))

  (:action up
    :parameters (?from ?to - floor)
    :precondition (and (lift-at ?from) (above ?to ?from))
    :effect (and (not (lift-at ?from)) (lift-at ?to)))

  (:action down
    :parameters (?from ?to - floor)
    :precondition (and (lift-at ?from) (above ?from ?to))
    :effect (and (not (lift-at ?from)) (lift-at ?to)))

  ; a reserved floor is for guests: no staff may be aboard there
  (:action stop
    :parameters (?f - floor)
    :precondition (and
      (lift-at ?f)
      (exists (?p - person) (or (waits ?p ?f) (and (aboard ?p) (wants ?p ?f))))
      (imply (reserved ?f) (forall (?s - staff) (not (aboard ?s)))))
    :effect (forall (?p - person)
      (and
        (when (and (aboard ?p) (wants ?p ?f)) (and (not (aboard ?p)) (served ?p)))
        (when (waits ?p ?f) (and (not (waits ?p ?f)) (aboard ?p)))))))
