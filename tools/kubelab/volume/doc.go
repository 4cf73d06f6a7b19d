// Package volume provides a lab's dynamic volumes: the default StorageClass
// "standard" and a provisioner of our own that answers every claim of that class
// with a hostPath PersistentVolume at once, and deletes the volume when its claim
// is gone. Binding, protection and the phases are the real controllers' work.
//
// No folder is made and nothing is stored: pods of a lab run no processes. A
// claim annotated with kubelab.lockstep.dev/fault: provision-failure stays
// pending until the annotation is removed.
package volume
