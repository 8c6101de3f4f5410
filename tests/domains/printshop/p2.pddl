; The text is proofed first, inkjets never wear out twice, and all printers are left clean.
(define (problem printshop-2)
  (:domain printshop)
  (:requirements :adl :typing :action-costs :constraints)
  (:objects cover text - job glossy - paper ink - inkjet toner - laser)
  (:init (= (total-cost) 0) (= (page-cost ink) 1) (= (page-cost toner) 2) (= (price plain) 1) (= (price glossy) 3)
         (needs cover glossy) (needs text plain)
         (in-colour cover) (prints-colour ink) (tray ink glossy) (tray toner glossy))
  (:goal (forall (?j - job) (printed ?j)))
  (:constraints (and
    (sometime-before (printed cover) (printed text))
    (forall (?p - inkjet) (at-most-once (worn ?p)))
    (forall (?p - printer) (at end (not (worn ?p))))))
  (:metric minimize (total-cost)))
