package render

import (
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/workspace"
)

// Annotations of the pods.
const (
	annotationSecretEnvDigest   = "lockstep.dev/secret-env-digest"
	annotationSecretFilesDigest = "lockstep.dev/secret-files-digest"
)

const (
	dataVolume  = "data"
	secretsPath = "/run/secrets/workspace"
	// userID is the user and group of all workspaces. It overrides the USER of the image. Pod security "restricted"
	// forbids root, and the volume belongs to the group.
	userID = 1000
	// time for an editor to save open files
	terminationGracePeriodSeconds = 30
	revisionHistoryLimit          = 1
)

func (r rendering) selector() map[string]string {
	return map[string]string{workspace.LabelWorkspace: r.ID.String()}
}

func (r rendering) deployment() appsv1.Deployment {
	replicas := int32(0)
	if r.DesiredState.Target() == events.DesiredTargetRunning {
		replicas = 1
	}
	meta := r.meta(r.Name)
	meta.Annotations = map[string]string{workspace.AnnotationDesiredRevision: strconv.FormatInt(r.DesiredRevision, 10)}
	return appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: meta,
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: r.selector()},
			// The volume is ReadWriteOnce, so the old pod must be deleted before the new pod starts.
			Strategy:                appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
			RevisionHistoryLimit:    new(int32(revisionHistoryLimit)),
			ProgressDeadlineSeconds: new(max(1, int32(r.settings.ProgressDeadline.Seconds()))),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: r.labels(), Annotations: r.podAnnotations()},
				Spec:       r.pod(),
			},
		},
	}
}

func (r rendering) podAnnotations() map[string]string {
	annotations := map[string]string{}
	if r.hasAgent() {
		annotations[workspaceagent.Annotation] = workspace.MainContainer
	}
	if len(r.Spec.SecretEnv) > 0 {
		annotations[annotationSecretEnvDigest] = r.Spec.SecretEnvDigest
	}
	if len(r.Spec.SecretFiles) > 0 {
		annotations[annotationSecretFilesDigest] = r.Spec.SecretFilesDigest
	}
	return annotations
}

func (r rendering) pod() corev1.PodSpec {
	pod := corev1.PodSpec{
		ServiceAccountName:            r.Name,
		AutomountServiceAccountToken:  new(false),
		EnableServiceLinks:            new(false),
		TerminationGracePeriodSeconds: new(int64(terminationGracePeriodSeconds)),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: new(int64(userID)), RunAsGroup: new(int64(userID)), FSGroup: new(int64(userID)),
			FSGroupChangePolicy: new(corev1.FSGroupChangeOnRootMismatch),
			SeccompProfile:      &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: append([]corev1.Container{r.container()}, r.furtherContainers()...),
		Volumes: []corev1.Volume{{Name: dataVolume, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: r.volumeName()},
		}}},
	}
	pod.Volumes = append(pod.Volumes, r.ephemeralVolumes()...)
	if len(r.Spec.SecretFiles) > 0 {
		files := &corev1.SecretVolumeSource{SecretName: r.SecretFilesName(), DefaultMode: new(int32(0o440))}
		for _, path := range r.Spec.SecretFiles {
			files.Items = append(files.Items, corev1.KeyToPath{Key: workspace.SecretFileKey(path), Path: path})
		}
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "secrets", VolumeSource: corev1.VolumeSource{Secret: files}})
	}
	if r.hasAgent() {
		r.addAgent(&pod)
	}
	return pod
}

func (r rendering) container() corev1.Container {
	c := newContainer(workspace.Container{
		Name: workspace.MainContainer, Image: r.Spec.Image, Env: r.Spec.Env, Command: r.Spec.Command, Args: r.Spec.Args,
		Mounts: append([]workspace.Mount{{Path: workspace.Folder}}, r.Spec.Mounts...),
	}, r.cpu, r.memory)
	for _, name := range r.Spec.SecretEnv {
		c.Env = append(
			c.Env,
			corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: r.SecretEnvName()}, Key: name,
			}}},
		)
	}
	for _, p := range r.Spec.Ports {
		c.Ports = append(c.Ports, corev1.ContainerPort{Name: p.Name, ContainerPort: p.Number, Protocol: corev1.ProtocolTCP})
	}
	if len(r.Spec.SecretFiles) > 0 {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "secrets", MountPath: secretsPath, ReadOnly: true})
	}
	return c
}

// literal escapes $ so that Kubernetes does not expand $(VAR).
func literal(value string) string { return strings.ReplaceAll(value, "$", "$$") }

func literals(values []string) []string {
	if len(values) == 0 {
		return nil
	}
	out := make([]string, 0, len(values))
	for _, value := range values {
		out = append(out, literal(value))
	}
	return out
}
