; A lift brings passengers from their origins to their destinations.
(define (domain elevator)
  (:requirements :strips :typing :equality :negative-preconditions)
  (:types floor passenger)
  (:predicates
    (lift-at ?f - floor) (origin ?p - passenger ?f - floor) (destination ?p - passenger ?f - floor)
    (boarded ?p - passenger) (served ?p - passenger))
  (:action move
    :parameters (?from ?to - floor)
    :precondition (and (not (= ?from ?to)) (lift-at ?from))
    :effect (and (lift-at ?to) (not (lift-at ?from))))
  (:action board
    :parameters (?p - passenger ?f - floor)
    :precondition (and (lift-at ?f) (origin ?p ?f))
    :effect (boarded ?p))
  (:action depart
    :parameters (?p - passenger ?f - floor)
    :precondition (and (lift-at ?f) (destination ?p ?f) (boarded ?p))
    :effect (and (served ?p) (not (boarded ?p)))))
