; One scene in the palace.
(define (problem theatre-1)
  (:domain theatre)
  (:objects duel nora crown)
  (:init (scene duel) (set-for duel palace) (scenery street) (scenery palace) (actor nora) (costume crown)
         (cast nora duel crown) (stage-set street))
  (:goal (and (played duel) (not (curtain-up)))))
