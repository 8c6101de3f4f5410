; A laboratory bench: dishes only receive, beakers and flasks can be poured and heated; hot acid and base make salt.
(define (domain laboratory)
  (:requirements :adl :typing :action-costs)
  (:types beaker flask dish liquid - object)
  (:constants acid base salt - liquid)
  (:predicates
    (holds ?v - (either beaker flask dish) ?l - liquid)
    (hot ?v - (either beaker flask))
    (stoppered ?f - flask))
  (:functions (total-cost) - number)

  (:action pour
    :parameters (?from - (either beaker flask) ?into - (either beaker flask dish))
    :precondition (and
      (not (= ?from ?into))
      (not (hot ?from))
      (exists (?l - liquid) (holds ?from ?l))
      (forall (?f - flask) (imply (or (= ?f ?from) (= ?f ?into)) (not (stoppered ?f)))))
    :effect (and
      (forall (?l - liquid) (when (holds ?from ?l) (and (not (holds ?from ?l)) (holds ?into ?l))))
      (increase (total-cost) 2)))

  (:action heat
    :parameters (?v - (either beaker flask))
    :precondition (and (not (hot ?v)) (exists (?l - liquid) (holds ?v ?l)))
    :effect (and
      (hot ?v)
      (when (and (holds ?v acid) (holds ?v base))
        (and (not (holds ?v acid)) (not (holds ?v base)) (holds ?v salt)))
      (increase (total-cost) 3)))

  (:action cool
    :parameters (?v - (either beaker flask))
    :precondition (hot ?v)
    :effect (and (not (hot ?v)) (increase (total-cost) 1)))

  (:action rinse
    :parameters (?v - (either beaker flask dish))
    :precondition (exists (?l - liquid) (holds ?v ?l))
    :effect (and (forall (?l - liquid) (not (holds ?v ?l))) (increase (total-cost) 1)))

  (:action unstopper
    :parameters (?f - flask)
    :precondition (stoppered ?f)
    :effect (and (not (stoppered ?f)) (increase (total-cost) 1))))
