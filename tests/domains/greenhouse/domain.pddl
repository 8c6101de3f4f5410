; A greenhouse: seeds sprout and ripen overnight where it is warm and they were watered; everything dries out.
(define (domain greenhouse)
  (:requirements :adl)
  (:predicates (bed ?b) (seed ?s) (in-store ?s) (sown ?b ?s) (sprouting ?b) (ripe ?b) (watered ?b)
    (warm) (vent-open) (harvested ?s))

  (:action open-vent :parameters ()
    :precondition (not (vent-open))
    :effect (and (vent-open) (not (warm))))

  (:action close-vent :parameters ()
    :precondition (vent-open)
    :effect (not (vent-open)))

  (:action heat :parameters ()
    :precondition (and (not (warm)) (not (vent-open)))
    :effect (warm))

  (:action sow :parameters (?b ?s)
    :precondition (and (bed ?b) (seed ?s) (in-store ?s) (not (exists (?o) (sown ?b ?o))))
    :effect (and (sown ?b ?s) (not (in-store ?s))))

  (:action water :parameters (?b)
    :precondition (and (bed ?b) (not (watered ?b)))
    :effect (watered ?b))

  (:action night :parameters ()
    :precondition (and)
    :effect (and
      (forall (?b) (when (and (bed ?b) (watered ?b) (sprouting ?b) (warm)) (and (ripe ?b) (not (sprouting ?b)))))
      (forall (?b ?s) (when (and (watered ?b) (sown ?b ?s) (not (sprouting ?b)) (not (ripe ?b))) (sprouting ?b)))
      (forall (?b) (not (watered ?b)))
      (not (warm))))

  (:action harvest :parameters (?b ?s)
    :precondition (and (ripe ?b) (sown ?b ?s))
    :effect (and (harvested ?s) (not (ripe ?b)) (not (sown ?b ?s)))))
