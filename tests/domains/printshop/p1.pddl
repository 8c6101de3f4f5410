; A colour cover and a plain text, bound in either order before the shop closes.
(define (problem printshop-1)
  (:domain printshop)
  (:objects cover text - job glossy - paper ink - inkjet toner - laser)
  (:init (= (total-cost) 0) (= (page-cost ink) 4) (= (page-cost toner) 1) (= (price plain) 1) (= (price glossy) 3)
         (needs cover glossy) (needs text plain) (in-colour cover) (prints-colour ink) (tray ink plain) (worn toner))
  (:goal (and (or (bound cover text) (bound text cover)) (closed)))
  (:metric minimize (total-cost)))
