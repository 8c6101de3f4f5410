; Either scene will do, but the palace has to be shown at some time.
(define (problem theatre-3)
  (:domain theatre)
  (:requirements :adl :constraints)
  (:objects market feast nora cloak crown)
  (:init (scene market) (scene feast) (set-for market street) (set-for feast palace) (scenery street) (scenery palace)
         (actor nora) (costume cloak) (costume crown) (cast nora market cloak) (cast nora feast crown)
         (wears nora cloak) (stage-set street))
  (:goal (or (and (played market) (not (on-stage nora))) (and (played feast) (not (lights-up)))))
  (:constraints (and
    (sometime (and (stage-set palace) (curtain-up)))
    (sometime-after (stage-set palace) (exists (?s) (played ?s))))))
