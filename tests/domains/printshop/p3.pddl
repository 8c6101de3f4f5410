; One printer for three jobs; the apprentice must see a jam, though not with glossy paper in the tray.
(define (problem printshop-3)
  (:domain printshop)
  (:requirements :adl :typing :action-costs :constraints)
  (:objects menu card text - job glossy - paper ink - inkjet)
  (:init (= (total-cost) 0) (= (page-cost ink) 2) (= (price plain) 1) (= (price glossy) 3)
         (needs menu glossy) (needs card glossy) (needs text plain)
         (in-colour card) (prints-colour ink) (tray ink plain))
  (:goal (and (printed card) (printed text) (not (exists (?p - printer) (jammed ?p)))))
  (:constraints (and
    (sometime (jammed ink))
    (sometime-after (jammed ink) (and (not (jammed ink)) (not (worn ink))))
    (always (not (and (tray ink glossy) (jammed ink))))))
  (:metric minimize (total-cost)))
