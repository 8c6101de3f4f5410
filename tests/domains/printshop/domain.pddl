; A print shop: jobs need the right paper; a worn printer jams on its next job until somebody cleans it.
(define (domain printshop)
  (:requirements :adl :typing :action-costs)
  (:types job paper printer - object
          inkjet laser - printer)
  (:constants plain - paper)
  (:predicates
    (needs ?j - job ?s - paper)
    (in-colour ?j - job)
    (prints-colour ?p - printer)
    (tray ?p - printer ?s - paper)
    (worn ?p - printer)
    (jammed ?p - printer)
    (printed ?j - job)
    (bound ?j ?k - job)
    (closed))
  (:functions (total-cost) - number (page-cost ?p - printer) - number (price ?s - paper) - number)

  (:action fill
    :parameters (?p - printer ?s - paper)
    :precondition (and (not (closed)) (not (tray ?p ?s)))
    :effect (and
      (tray ?p ?s)
      (forall (?o - paper) (when (not (= ?o ?s)) (not (tray ?p ?o))))
      (increase (total-cost) (price ?s))))

  (:action print
    :parameters (?j - job ?p - printer)
    :precondition (and
      (not (closed))
      (not (printed ?j))
      (not (jammed ?p))
      (imply (in-colour ?j) (prints-colour ?p))
      (exists (?s - paper) (and (needs ?j ?s) (tray ?p ?s))))
    :effect (and
      (when (not (worn ?p)) (and (printed ?j) (worn ?p)))
      (when (worn ?p) (jammed ?p))
      (increase (total-cost) (page-cost ?p))))

  (:action clean
    :parameters (?p - printer)
    :precondition (or (worn ?p) (jammed ?p))
    :effect (and (not (worn ?p)) (not (jammed ?p)) (increase (total-cost) 1)))

  (:action bind
    :parameters (?j ?k - job)
    :precondition (and (not (= ?j ?k)) (printed ?j) (printed ?k))
    :effect (and (bound ?j ?k) (increase (total-cost) 2)))

  (:action close-shop
    :parameters ()
    :precondition (and (not (closed)) (forall (?p - printer) (not (jammed ?p))))
    :effect (closed)))
