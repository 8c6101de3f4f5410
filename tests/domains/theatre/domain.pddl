; Backstage: scenery is changed behind the curtain, actors change off stage, and a scene needs its cast in costume.
(define (domain theatre)
  (:requirements :adl :constraints)
  (:constants street palace)
  (:predicates (actor ?a) (scene ?s) (costume ?c) (set-for ?s ?p) (scenery ?p) (cast ?a ?s ?c)
    (on-stage ?a) (wears ?a ?c) (played ?s) (curtain-up) (lights-up) (stage-set ?p))
  ; the palace collapses when the lights go up on it before the curtain does
  (:constraints (always (imply (and (lights-up) (stage-set palace)) (curtain-up))))

  (:action raise-curtain :parameters () :precondition (not (curtain-up)) :effect (curtain-up))

  (:action lower-curtain :parameters () :precondition (and (curtain-up) (not (lights-up))) :effect (not (curtain-up)))

  (:action dim :parameters () :precondition (lights-up) :effect (not (lights-up)))

  (:action brighten :parameters () :precondition () :effect (lights-up))

  (:action change-scenery :parameters (?from ?to)
    :precondition (and
      (scenery ?to) (stage-set ?from) (not (= ?from ?to)) (not (curtain-up))
      (forall (?a) (not (on-stage ?a))))
    :effect (and (not (stage-set ?from)) (stage-set ?to)))

  (:action dress :parameters (?a ?c)
    :precondition (and (actor ?a) (costume ?c) (not (on-stage ?a)) (not (exists (?o) (wears ?o ?c))))
    :effect (and (wears ?a ?c) (forall (?o) (when (wears ?a ?o) (not (wears ?a ?o))))))

  (:action enter :parameters (?a)
    :precondition (and (actor ?a) (not (on-stage ?a)) (exists (?c) (wears ?a ?c)))
    :effect (on-stage ?a))

  (:action leave :parameters (?a)
    :precondition (on-stage ?a)
    :effect (not (on-stage ?a)))

  (:action play :parameters (?s)
    :precondition (and
      (scene ?s) (curtain-up) (lights-up)
      (exists (?p) (and (set-for ?s ?p) (stage-set ?p)))
      (forall (?a ?c) (imply (cast ?a ?s ?c) (and (on-stage ?a) (wears ?a ?c)))))
    :effect (and (played ?s) (forall (?a) (when (not (exists (?c) (cast ?a ?s ?c))) (not (on-stage ?a)))))))
