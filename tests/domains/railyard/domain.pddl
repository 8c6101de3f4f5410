; A shunting yard: an engine drags whatever is coupled to it; short tracks take one vehicle, and points cost time.
(define (domain railyard)
  (:requirements :adl :typing :action-costs)
  (:types vehicle track - object
          engine wagon - vehicle
          siding main-line - track)
  (:predicates
    (on ?v - vehicle ?t - track)
    (points ?a ?b - track)
    (coupled ?w - wagon ?e - engine)
    (short ?t - track)
    (braked ?w - wagon))
  (:functions (total-cost) - number (distance ?a ?b - track) - number)

  (:action couple
    :parameters (?e - engine ?w - wagon)
    :precondition (and
      (exists (?t - track) (and (on ?e ?t) (on ?w ?t)))
      (not (exists (?o - engine) (coupled ?w ?o))))
    :effect (and (coupled ?w ?e) (not (braked ?w)) (increase (total-cost) 1)))

  (:action uncouple
    :parameters (?e - engine ?w - wagon)
    :precondition (coupled ?w ?e)
    :effect (and (not (coupled ?w ?e)) (braked ?w) (increase (total-cost) 1)))

  (:action drive
    :parameters (?e - engine ?from ?to - track)
    :precondition (and
      (on ?e ?from)
      (or (points ?from ?to) (points ?to ?from))
      (imply (short ?to) (and
        (not (exists (?v - vehicle) (on ?v ?to)))
        (forall (?w - wagon) (not (coupled ?w ?e)))))
      (not (exists (?o - engine) (and (not (= ?o ?e)) (on ?o ?to)))))
    :effect (and
      (not (on ?e ?from))
      (on ?e ?to)
      (forall (?w - wagon) (when (coupled ?w ?e) (and (not (on ?w ?from)) (on ?w ?to))))
      (increase (total-cost) (distance ?from ?to)))))
