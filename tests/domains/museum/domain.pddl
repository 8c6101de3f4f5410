; A museum's night guard: look at every room with the light on, then arm the galleries from outside a locked door.
(define (domain museum)
  (:requirements :adl :typing)
  (:types room door key - object
          gallery office - room)
  (:constants lobby - office)
  (:predicates
    (guard-in ?r - room)
    (joins ?d - door ?a ?b - room)
    (locked ?d - door)
    (fits ?k - key ?d - door)
    (hangs-in ?k - key ?r - room)
    (carried ?k - key)
    (lit ?r - room)
    (checked ?r - room)
    (armed ?g - gallery))

  (:action walk
    :parameters (?a ?b - room ?d - door)
    :precondition (and (guard-in ?a) (not (= ?a ?b)) (not (locked ?d)) (or (joins ?d ?a ?b) (joins ?d ?b ?a)))
    :effect (and (not (guard-in ?a)) (guard-in ?b)))

  (:action take
    :parameters (?k - key ?r - room)
    :precondition (and (guard-in ?r) (hangs-in ?k ?r))
    :effect (and (not (hangs-in ?k ?r)) (carried ?k)))

  (:action turn-key
    :parameters (?d - door ?r - room)
    :precondition (and
      (guard-in ?r)
      (exists (?o - room) (or (joins ?d ?r ?o) (joins ?d ?o ?r)))
      (exists (?k - key) (and (carried ?k) (fits ?k ?d))))
    :effect (and (when (locked ?d) (not (locked ?d))) (when (not (locked ?d)) (locked ?d))))

  (:action switch
    :parameters (?r - room)
    :precondition (guard-in ?r)
    :effect (and (when (lit ?r) (not (lit ?r))) (when (not (lit ?r)) (lit ?r))))

  (:action check
    :parameters (?r - room)
    :precondition (and (guard-in ?r) (lit ?r) (not (checked ?r)))
    :effect (checked ?r))

  ; every door of the gallery must be locked, and the guard next to it
  (:action arm
    :parameters (?g - gallery ?r - room)
    :precondition (and
      (guard-in ?r)
      (not (= ?g ?r))
      (checked ?g)
      (exists (?d - door) (or (joins ?d ?r ?g) (joins ?d ?g ?r)))
      (forall (?d - door) (imply (exists (?o - room) (or (joins ?d ?g ?o) (joins ?d ?o ?g))) (locked ?d))))
    :effect (armed ?g)))
