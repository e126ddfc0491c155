; A pulse goes through a bend of a waveguide. The first steps open connections. Each energy ends with a sum of all ranks.
(set! geometry-lattice (make lattice (size 12 12 no-size)))
(set! geometry (list
    (make block (center -2 -2) (size 8 1 infinity) (material (make dielectric (epsilon 12))))
    (make block (center 1.5 1.5) (size 1 8 infinity) (material (make dielectric (epsilon 12))))))
(set! sources (list
    (make source (src (make gaussian-src (frequency 0.15) (fwidth 0.1))) (component Ez) (center -5 -2) (size 0 1))))
(set! pml-layers (list (make pml (thickness 1.0))))
(set! resolution 16)
(run-until 1)
(print "energy: " (electric-energy-in-box (volume (center 0 0) (size 12 12))) "\n")
(run-until 6)
(print "energy: " (electric-energy-in-box (volume (center 0 0) (size 12 12))) "\n")
