; Boats in a canal: a lock holds one boat, its gates open only at equal water, and never two of them at once.
(define (domain canal)
  (:requirements :adl :typing :action-costs)
  (:types reach lock boat - object
          barge yacht - boat)
  (:predicates
    (at ?b - boat ?p - (either reach lock))
    (gate ?l - lock ?r - reach)
    (level ?l - lock ?r - reach)
    (open ?l - lock ?r - reach)
    (narrow ?r - reach))
  (:functions (total-cost) - number)

  (:action open-gate
    :parameters (?l - lock ?r - reach)
    :precondition (and (gate ?l ?r) (level ?l ?r) (forall (?o - reach) (not (open ?l ?o))))
    :effect (and (open ?l ?r) (increase (total-cost) 1)))

  (:action close-gate
    :parameters (?l - lock ?r - reach)
    :precondition (open ?l ?r)
    :effect (and (not (open ?l ?r)) (increase (total-cost) 1)))

  (:action work-paddles
    :parameters (?l - lock ?from ?to - reach)
    :precondition (and (level ?l ?from) (gate ?l ?to) (not (= ?from ?to)) (not (exists (?r - reach) (open ?l ?r))))
    :effect (and (not (level ?l ?from)) (level ?l ?to) (increase (total-cost) 5)))

  ; into a lock only when it is empty, onto a narrow reach only when no barge is on it
  (:action sail
    :parameters (?b - boat ?from ?to - (either reach lock))
    :precondition (and
      (at ?b ?from)
      (exists (?l - lock ?r - reach)
        (and (open ?l ?r) (or (and (= ?from ?r) (= ?to ?l)) (and (= ?from ?l) (= ?to ?r)))))
      (forall (?l - lock) (imply (= ?to ?l) (not (exists (?o - boat) (at ?o ?l)))))
      (forall (?r - reach ?o - barge) (imply (and (= ?to ?r) (narrow ?r)) (not (at ?o ?r)))))
    :effect (and (not (at ?b ?from)) (at ?b ?to) (increase (total-cost) 1))))
