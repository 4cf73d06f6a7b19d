package workspace

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"

	"lockstep.internal/services/state/invalid"
)

// Sizes are Kubernetes quantities of a spec.
type Sizes struct {
	CPU, Memory, VolumeSize string
}

// DefaultSizes are the sizes of workspaces if nobody sets any.
func DefaultSizes() Sizes { return Sizes{CPU: "500m", Memory: "1Gi", VolumeSize: "10Gi"} }

// Maximums limit the sizes of a spec.
type Maximums struct {
	CPU, Memory, VolumeSize Maximum
}

// Maximum limits one size.
type Maximum struct {
	// Quantity is the largest one that is allowed. Empty without a limit.
	Quantity string
	// Owner of the limit, such as agent "east" or the cell.
	Owner string
}

// WithDefaults fills the empty sizes, also those of further containers.
func (s Spec) WithDefaults(sizes Sizes) Spec {
	s.Containers = slices.Clone(s.Containers)
	for i, c := range s.Containers {
		s.Containers[i].CPU, s.Containers[i].Memory = cmp.Or(c.CPU, sizes.CPU), cmp.Or(c.Memory, sizes.Memory)
	}
	for _, size := range []struct {
		value *string
		to    string
	}{{&s.CPU, sizes.CPU}, {&s.Memory, sizes.Memory}, {&s.VolumeSize, sizes.VolumeSize}} {
		if *size.value == "" {
			*size.value = size.to
		}
	}
	return s
}

// sizes are those of the container of the workspace.
func (s Spec) sizes() Sizes { return Sizes{CPU: s.CPU, Memory: s.Memory, VolumeSize: s.VolumeSize} }

// AtMost returns the sizes; one above its maximum is the maximum.
func (s Sizes) AtMost(maximums Sizes) Sizes {
	for _, size := range []struct {
		value   *string
		maximum string
	}{{&s.CPU, maximums.CPU}, {&s.Memory, maximums.Memory}, {&s.VolumeSize, maximums.VolumeSize}} {
		if exceeds(*size.value, size.maximum) {
			*size.value = size.maximum
		}
	}
	return s
}

// checkMaximums adds an error for each size that is above its maximum and above the current one. A lowered maximum
// does not affect workspaces that exist.
func (f *fieldErrors) checkMaximums(s, current Sizes, m Maximums) {
	for _, size := range []struct {
		path, value, current string
		maximum              Maximum
	}{
		{"cpu", s.CPU, current.CPU, m.CPU},
		{"memory", s.Memory, current.Memory, m.Memory},
		{"volume_size", s.VolumeSize, current.VolumeSize, m.VolumeSize},
	} {
		if exceeds(size.value, size.maximum.Quantity) && (size.current == "" || exceeds(size.value, size.current)) {
			f.Addf(size.path, "%q is more than max_%s of %s, which is %s", size.value, size.path, size.maximum.Owner,
				size.maximum.Quantity)
		}
	}
}

// exceeds reports whether a quantity is more than a maximum. Nothing exceeds an invalid or empty maximum.
func exceeds(value, maximum string) bool {
	v, errValue := resource.ParseQuantity(value)
	m, errMaximum := resource.ParseQuantity(maximum)
	return errValue == nil && errMaximum == nil && v.Cmp(m) > 0
}

// ValidateSizes adds an error for each default or maximum that is not a quantity.
func ValidateSizes(fields *invalid.Fields, defaults, maximums Sizes) {
	f := fieldErrors{*fields}
	for _, size := range []struct {
		path, value, maximum string
		divisible            bool
	}{
		{"cpu", defaults.CPU, maximums.CPU, true},
		{"memory", defaults.Memory, maximums.Memory, false},
		{"volume_size", defaults.VolumeSize, maximums.VolumeSize, false},
	} {
		f.quantity("default_"+size.path, size.value, size.divisible)
		if size.maximum != "" {
			f.quantity("max_"+size.path, size.maximum, size.divisible)
		}
	}
	*fields = f.Fields
}
