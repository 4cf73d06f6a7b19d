package render

import (
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"lockstep.internal/libs/kubename"
	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/workspace"
)

// rendering holds the input and the parsed quantities of one workspace.
type rendering struct {
	workspace.Workspace

	settings            agent.Manifests
	cpu, memory, volume resource.Quantity
	further             []size // of the further containers
	total               size   // of all containers
}

// newRendering parses the quantities of the spec.
func newRendering(w workspace.Workspace, m agent.Manifests) (rendering, error) {
	r := rendering{Workspace: w, settings: m, further: make([]size, len(w.Spec.Containers))}
	total := r.Spec.Totals()
	quantities := []struct {
		name, value string
		target      *resource.Quantity
	}{
		{"cpu", r.Spec.CPU, &r.cpu},
		{"memory", r.Spec.Memory, &r.memory},
		{"volume_size", r.Spec.VolumeSize, &r.volume},
		{"cpu of all containers", total.CPU, &r.total.cpu},
		{"memory of all containers", total.Memory, &r.total.memory},
	}
	for i, c := range r.Spec.Containers {
		quantities = append(quantities, []struct {
			name, value string
			target      *resource.Quantity
		}{
			{"cpu of container " + c.Name, c.CPU, &r.further[i].cpu},
			{"memory of container " + c.Name, c.Memory, &r.further[i].memory},
		}...)
	}
	for _, q := range quantities {
		parsed, err := resource.ParseQuantity(q.value)
		if err != nil {
			return r, fmt.Errorf("%s %q: %w", q.name, q.value, err)
		}
		*q.target = parsed
	}
	return r, nil
}

func manifests(w workspace.Workspace, m agent.Manifests) ([]any, error) {
	r, err := newRendering(w, m)
	if err != nil {
		return nil, err
	}
	policy, err := r.networkPolicy()
	if err != nil {
		return nil, err
	}
	out := []any{namespace{Namespace: r.namespace()}, r.serviceAccount(), policy}
	if m.ResourceQuota {
		out = append(out, resourceQuota{ResourceQuota: r.resourceQuota()})
	}
	if m.OwnerAccess {
		out = append(out, r.ownerBinding())
	}
	out = append(out, volumeClaim{PersistentVolumeClaim: r.volumeClaim()})
	if r.hasAgent() {
		config, err := r.agentConfig()
		if err != nil {
			return nil, err
		}
		out = append(out, config)
	}
	if len(w.Spec.Ports) > 0 || r.hasAgent() {
		out = append(out, service{Service: r.service()})
	}
	return append(out, deployment{Deployment: r.deployment()}), nil
}

// Types that omit the status in JSON, because the cluster owns it.
type (
	noStatus  struct{}
	namespace struct {
		corev1.Namespace

		Status *noStatus `json:"status,omitempty"`
	}
	volumeClaim struct {
		corev1.PersistentVolumeClaim

		Status *noStatus `json:"status,omitempty"`
	}
	service struct {
		corev1.Service

		Status *noStatus `json:"status,omitempty"`
	}
	resourceQuota struct {
		corev1.ResourceQuota

		Status *noStatus `json:"status,omitempty"`
	}
	deployment struct {
		appsv1.Deployment

		Status *noStatus `json:"status,omitempty"`
	}
)

func (r rendering) labels() map[string]string {
	return map[string]string{
		workspace.LabelAgent:         strconv.FormatInt(r.AgentID, 10),
		workspace.LabelWorkspace:     r.ID.String(),
		workspace.LabelWorkspaceName: r.Name,
	}
}

func (r rendering) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: r.Namespace, Labels: r.labels()}
}

func (r rendering) volumeName() string { return r.Name + "-data" }

func (r rendering) ownerBindingName() string { return r.Name + "-owner" }

func (r rendering) namespace() corev1.Namespace {
	labels := r.labels()
	for _, mode := range []string{"enforce", "warn", "audit"} {
		labels["pod-security.kubernetes.io/"+mode] = "restricted"
	}
	return corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: r.Namespace, Labels: labels},
	}
}

// serviceAccount names the pull secrets, and the pods do not: Kubernetes copies the names to new pods, so running pods
// are not replaced when a project gets its first pull secret.
func (r rendering) serviceAccount() corev1.ServiceAccount {
	var pull []corev1.LocalObjectReference
	if r.Spec.PullSecretDigest != "" {
		pull = []corev1.LocalObjectReference{{Name: r.PullSecretName()}}
	}
	return corev1.ServiceAccount{
		ImagePullSecrets:             pull,
		TypeMeta:                     metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta:                   r.meta(r.Name),
		AutomountServiceAccountToken: new(false),
	}
}

// ownerBinding lets the owner use the Kubernetes API in the namespace, as the user that relays impersonate.
func (r rendering) ownerBinding() rbacv1.RoleBinding {
	return rbacv1.RoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "RoleBinding"},
		ObjectMeta: r.meta(r.ownerBindingName()),
		RoleRef: rbacv1.RoleRef{
			APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: kubename.OwnerRole(r.AgentID),
		},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: kubename.User(r.UserID)}},
	}
}

func (r rendering) volumeClaim() corev1.PersistentVolumeClaim {
	claim := corev1.PersistentVolumeClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: r.meta(r.volumeName()),
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: r.volume}},
		},
	}
	if r.Spec.StorageClass != "" {
		claim.Spec.StorageClassName = &r.Spec.StorageClass
	}
	return claim
}

func (r rendering) service() corev1.Service {
	service := corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: r.meta(r.Name),
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Selector: r.selector()},
	}
	for _, p := range r.Spec.Ports {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{
			Name: p.Name, Port: p.Number, TargetPort: intstr.FromInt32(p.Number), Protocol: corev1.ProtocolTCP,
		})
	}
	if e := r.Spec.Editor; e != nil && r.hasAgent() {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{
			Name: workspace.EditorPortName, Port: e.Port, TargetPort: intstr.FromInt32(e.Port), Protocol: corev1.ProtocolTCP,
		})
	}
	if r.hasAgent() {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{
			Name: agentPortName, Port: workspaceagent.Port, TargetPort: intstr.FromInt32(workspaceagent.Port),
			Protocol: corev1.ProtocolTCP,
		})
	}
	return service
}

// resourceQuota allows two pods, because an old pod can still terminate while the new one starts.
func (r rendering) resourceQuota() corev1.ResourceQuota {
	twice := func(q resource.Quantity) resource.Quantity {
		sum := q.DeepCopy()
		sum.Add(q)
		return sum
	}
	return corev1.ResourceQuota{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ResourceQuota"},
		ObjectMeta: r.meta(r.Name),
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			corev1.ResourcePods:                   resource.MustParse("2"),
			corev1.ResourcePersistentVolumeClaims: resource.MustParse("1"),
			corev1.ResourceRequestsStorage:        r.volume,
			corev1.ResourceLimitsCPU:              twice(r.total.cpu),
			corev1.ResourceLimitsMemory:           twice(r.total.memory),
		}},
	}
}
