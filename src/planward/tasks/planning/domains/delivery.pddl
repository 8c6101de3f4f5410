; A truck with room for one package delivers packages on a grid of cells.
(define (domain delivery)
  (:requirements :strips :typing)
  (:types cell locatable - object
          package truck - locatable)
  (:predicates
    (adjacent ?a ?b - cell) (at ?x - locatable ?c - cell)
    (carrying ?t - truck ?p - package) (empty ?t - truck))
  (:action move
    :parameters (?t - truck ?from ?to - cell)
    :precondition (and (at ?t ?from) (adjacent ?from ?to))
    :effect (and (at ?t ?to) (not (at ?t ?from))))
  (:action pick-package
    :parameters (?t - truck ?p - package ?c - cell)
    :precondition (and (at ?t ?c) (at ?p ?c) (empty ?t))
    :effect (and (carrying ?t ?p) (not (at ?p ?c)) (not (empty ?t))))
  (:action drop-package
    :parameters (?t - truck ?p - package ?c - cell)
    :precondition (and (at ?t ?c) (carrying ?t ?p))
    :effect (and (at ?p ?c) (empty ?t) (not (carrying ?t ?p)))))
