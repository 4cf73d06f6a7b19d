// Package helm tests the Helm chart of the control plane with the library of helm itself, and installs it in a real
// Kubernetes control plane. The module is not in go.work, so that helm's dependencies do not reach others.
package helm
