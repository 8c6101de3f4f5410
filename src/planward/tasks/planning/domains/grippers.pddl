; Robots with two grippers each carry objects between rooms.
(define (domain grippers)
  (:requirements :strips :typing)
  (:types room obj robot gripper)
  (:predicates
    (at-robby ?r - robot ?x - room) (at ?o - obj ?x - room)
    (free ?r - robot ?g - gripper) (carry ?r - robot ?o - obj ?g - gripper))
  (:action move
    :parameters (?r - robot ?from ?to - room)
    :precondition (at-robby ?r ?from)
    :effect (and (at-robby ?r ?to) (not (at-robby ?r ?from))))
  (:action pick
    :parameters (?r - robot ?o - obj ?x - room ?g - gripper)
    :precondition (and (at ?o ?x) (at-robby ?r ?x) (free ?r ?g))
    :effect (and (carry ?r ?o ?g) (not (at ?o ?x)) (not (free ?r ?g))))
  (:action drop
    :parameters (?r - robot ?o - obj ?x - room ?g - gripper)
    :precondition (and (carry ?r ?o ?g) (at-robby ?r ?x))
    :effect (and (at ?o ?x) (free ?r ?g) (not (carry ?r ?o ?g)))))
