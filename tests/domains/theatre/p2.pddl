; Two scenes in order, the curtain raised once only, nobody left on stage.
(define (problem theatre-2)
  (:domain theatre)
  (:requirements :adl :constraints)
  (:objects market feast nora otto cloak hat)
  (:init (scene market) (scene feast) (set-for market street) (set-for feast street) (scenery street)
         (actor nora) (actor otto) (costume cloak) (costume hat) (cast nora market cloak) (cast otto feast cloak)
         (stage-set street))
  (:goal (and (forall (?s) (imply (scene ?s) (played ?s))) (forall (?a) (not (on-stage ?a)))))
  (:constraints (and
    (sometime-before (played market) (played feast))
    (at-most-once (curtain-up))
    (always (imply (exists (?a) (on-stage ?a)) (or (curtain-up) (not (lights-up)))))
    (at end (not (lights-up))))))
