package render

import (
	"maps"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"lockstep.internal/services/state/workspace"
)

// ephemeralPrefix begins the names of volumes that are empty when a pod starts.
const ephemeralPrefix = "ephemeral-"

// size is what a further container may use.
type size struct{ cpu, memory resource.Quantity }

// newContainer renders what all containers have.
func newContainer(c workspace.Container, cpu, memory resource.Quantity) corev1.Container {
	resources := corev1.ResourceList{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory}
	out := corev1.Container{
		Name:      c.Name,
		Image:     c.Image,
		Command:   literals(c.Command),
		Args:      literals(c.Args),
		Resources: corev1.ResourceRequirements{Requests: resources, Limits: resources},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		out.Env = append(out.Env, corev1.EnvVar{Name: name, Value: literal(c.Env[name])})
	}
	for _, m := range c.Mounts {
		out.VolumeMounts = append(out.VolumeMounts, mount(m))
	}
	return out
}

func mount(m workspace.Mount) corev1.VolumeMount {
	switch {
	case m.Ephemeral:
		return corev1.VolumeMount{Name: ephemeralPrefix + m.Volume, MountPath: m.Path}
	case m.Volume == "":
		return corev1.VolumeMount{Name: dataVolume, MountPath: m.Path}
	default:
		return corev1.VolumeMount{
			Name: dataVolume, MountPath: m.Path, SubPath: path.Join(workspace.VolumesFolder, m.Volume),
		}
	}
}

func (r rendering) furtherContainers() []corev1.Container {
	var all []corev1.Container
	for i, c := range r.Spec.Containers {
		out := newContainer(c, r.further[i].cpu, r.further[i].memory)
		if len(c.PostStart) > 0 {
			out.Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{
				Exec: &corev1.ExecAction{Command: background(c.PostStart)},
			}}
		}
		all = append(all, out)
	}
	return all
}

// background is a command that starts others, one after the other, and does not wait: a container is not started before
// its handler has ended. Their output goes to that of the first process, which is the log of the container.
func background(lines []string) []string {
	const script = `(for line; do sh -c "$line"; done) >/proc/1/fd/1 2>&1 &`
	return append([]string{"/bin/sh", "-c", script, "post-start"}, lines...)
}

// ephemeralVolumes are the folders that mounts name and that are empty when a pod starts.
func (r rendering) ephemeralVolumes() []corev1.Volume {
	names := map[string]bool{}
	mounts := slices.Clone(r.Spec.Mounts)
	for _, c := range r.Spec.Containers {
		mounts = append(mounts, c.Mounts...)
	}
	for _, m := range mounts {
		if m.Ephemeral {
			names[m.Volume] = true
		}
	}
	var volumes []corev1.Volume
	for _, name := range slices.Sorted(maps.Keys(names)) {
		volumes = append(volumes, corev1.Volume{
			Name: ephemeralPrefix + name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
		})
	}
	return volumes
}
