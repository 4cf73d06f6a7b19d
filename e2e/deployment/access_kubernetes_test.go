package deployment_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// errUnknown is returned for a field that the test does not know. It may be access.
var errUnknown = errors.New("the test does not know it: add it to the test, and to docs/access.md if it is access")

// workload is a Deployment.
type workload struct {
	metav1.ObjectMeta

	program string
	pod     corev1.PodTemplateSpec
}

// manifestSet has the objects of manifests that give or limit access.
type manifestSet struct {
	workloads       []workload
	accounts        []corev1.ServiceAccount
	rules           map[rbacv1.RoleRef][]rbacv1.PolicyRule // the name of a Role begins with its namespace
	bindings        []rbacv1.RoleBinding                   // without a namespace for a ClusterRoleBinding
	networkPolicies []networkingv1.NetworkPolicy
	policies        []admissionv1.ValidatingAdmissionPolicy
	denied          []string // the names of policies that deny
}

// kubernetesAccess returns the access of the programs, users and groups of manifests.
func kubernetesAccess(documents [][]byte) (accesses, error) {
	set := manifestSet{rules: map[rbacv1.RoleRef][]rbacv1.PolicyRule{}}
	for _, raw := range documents {
		if err := set.read(raw); err != nil {
			return nil, fmt.Errorf("%w in\n%s", err, raw)
		}
	}
	found := accesses{}
	for _, step := range []func(accesses) error{
		set.addWorkloads, set.addBindings, set.addNetworkPolicies, set.addPolicies,
	} {
		if err := step(found); err != nil {
			return nil, err
		}
	}
	return found, nil
}

func (s *manifestSet) read(raw []byte) error {
	var typed metav1.TypeMeta
	if err := yaml.Unmarshal(raw, &typed); err != nil {
		return err
	}
	switch typed.Kind {
	case "Namespace":
		var o corev1.Namespace
		if err := yaml.UnmarshalStrict(raw, &o); err != nil {
			return err
		}
		if o.Labels["pod-security.kubernetes.io/enforce"] != "restricted" {
			return fmt.Errorf("namespace without restricted pods: %w", errUnknown)
		}
		return nil
	case "Secret", "ConfigMap", "PodDisruptionBudget":
		return nil // they give no access
	case "Deployment":
		var o appsv1.Deployment
		if err := yaml.UnmarshalStrict(raw, &o); err != nil {
			return err
		}
		return s.addWorkload(raw, o.ObjectMeta, o.Spec.Template)
	case "ServiceAccount":
		return appendTo(raw, &s.accounts)
	case "NetworkPolicy":
		return appendTo(raw, &s.networkPolicies)
	case "ValidatingAdmissionPolicy":
		return appendTo(raw, &s.policies)
	default:
		return s.readPermission(typed.Kind, raw)
	}
}

func (s *manifestSet) readPermission(kind string, raw []byte) error {
	switch kind {
	case "ClusterRole":
		var o rbacv1.ClusterRole
		if err := yaml.UnmarshalStrict(raw, &o); err != nil || o.AggregationRule != nil {
			return errors.Join(errUnknown, err)
		}
		s.rules[rbacv1.RoleRef{Kind: kind, Name: o.Name}] = o.Rules
		return nil
	case "Role":
		var o rbacv1.Role
		if err := yaml.UnmarshalStrict(raw, &o); err != nil {
			return err
		}
		s.rules[rbacv1.RoleRef{Kind: kind, Name: o.Namespace + "/" + o.Name}] = o.Rules
		return nil
	case "RoleBinding", "ClusterRoleBinding":
		return appendTo(raw, &s.bindings) // both have the same fields
	case "ValidatingAdmissionPolicyBinding":
		var o admissionv1.ValidatingAdmissionPolicyBinding
		if err := yaml.UnmarshalStrict(raw, &o); err != nil {
			return err
		}
		expected := admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: o.Spec.PolicyName, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		}
		if !equality.Semantic.DeepEqual(o.Spec, expected) {
			return fmt.Errorf("binding %s does not deny everywhere: %w", o.Name, errUnknown)
		}
		s.denied = append(s.denied, o.Spec.PolicyName)
		return nil
	default:
		return fmt.Errorf("kind %q: %w", kind, errUnknown)
	}
}

func appendTo[T any](raw []byte, to *[]T) error {
	var o T
	if err := yaml.UnmarshalStrict(raw, &o); err != nil {
		return err
	}
	*to = append(*to, o)
	return nil
}

func (s *manifestSet) addWorkload(raw []byte, meta metav1.ObjectMeta, pod corev1.PodTemplateSpec) error {
	if err := requireKnownFields(raw); err != nil {
		return err
	}
	program, ok := strings.CutPrefix(meta.Name, "lockstep-")
	if !ok || pod.Spec.ServiceAccountName != meta.Name {
		return fmt.Errorf("account %q of workload %q: %w", pod.Spec.ServiceAccountName, meta.Name, errUnknown)
	}
	s.workloads = append(s.workloads, workload{ObjectMeta: meta, program: program, pod: pod})
	return nil
}

// requireKnownFields fails for fields of pods and containers that may give access: host namespaces, other containers,
// commands, variables from Secrets.
func requireKnownFields(raw []byte) error {
	var o struct {
		Spec struct {
			Template struct{ Spec map[string]any }
		}
	}
	if err := yaml.Unmarshal(raw, &o); err != nil {
		return err
	}
	known := []string{
		"automountServiceAccountToken", "containers", "enableServiceLinks", "securityContext", "serviceAccountName",
		"terminationGracePeriodSeconds", "topologySpreadConstraints", "volumes",
	}
	for field := range o.Spec.Template.Spec {
		if !slices.Contains(known, field) {
			return fmt.Errorf("field %s of the pod: %w", field, errUnknown)
		}
	}
	known = []string{
		"env", "image", "imagePullPolicy", "livenessProbe", "name", "ports", "readinessProbe", "resources",
		"securityContext", "startupProbe", "volumeMounts",
	}
	containers, _ := o.Spec.Template.Spec["containers"].([]any)
	for _, c := range containers {
		fields, _ := c.(map[string]any)
		for field := range fields {
			if !slices.Contains(known, field) {
				return fmt.Errorf("field %s of the container: %w", field, errUnknown)
			}
		}
	}
	return nil
}

func (s *manifestSet) addWorkloads(found accesses) error {
	for _, w := range s.workloads {
		spec := w.pod.Spec
		id := new(int64(65532))
		hardened := corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: id, RunAsGroup: id, FSGroup: id,
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}
		if !equality.Semantic.DeepEqual(spec.SecurityContext, &hardened) {
			return fmt.Errorf("security context of the pods of %s: %w", w.program, errUnknown)
		}
		if ptr.Deref(spec.AutomountServiceAccountToken, true) {
			found.add(w.program, "token of its ServiceAccount")
		}
		volumes := map[string]string{}
		for _, v := range spec.Volumes {
			source, err := volumeSource(v.VolumeSource)
			if err != nil {
				return fmt.Errorf("volume %s of %s: %w", v.Name, w.program, err)
			}
			volumes[v.Name] = source
		}
		for _, c := range spec.Containers {
			if err := addContainer(found, w.program, c, volumes); err != nil {
				return fmt.Errorf("container of %s: %w", w.program, err)
			}
		}
	}
	return nil
}

func addContainer(found accesses, program string, c corev1.Container, volumes map[string]string) error {
	hardened := corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	if !equality.Semantic.DeepEqual(c.SecurityContext, &hardened) {
		return fmt.Errorf("security context: %w", errUnknown)
	}
	for _, e := range c.Env {
		if from := e.ValueFrom; from != nil {
			if !equality.Semantic.DeepEqual(from, &corev1.EnvVarSource{FieldRef: from.FieldRef}) {
				return fmt.Errorf("variable %s: %w", e.Name, errUnknown)
			}
		}
	}
	for _, m := range c.VolumeMounts {
		if !equality.Semantic.DeepEqual(m, corev1.VolumeMount{Name: m.Name, MountPath: m.MountPath, ReadOnly: true}) {
			return fmt.Errorf("mount %s: %w", m.Name, errUnknown)
		}
		found.add(program, m.MountPath+": "+volumes[m.Name])
	}
	for _, p := range c.Ports {
		if p != (corev1.ContainerPort{Name: p.Name, ContainerPort: p.ContainerPort, Protocol: p.Protocol}) {
			return fmt.Errorf("port %s: %w", p.Name, errUnknown)
		}
		found.add(program, fmt.Sprintf("listens on %d (%s)", p.ContainerPort, p.Name))
	}
	return nil
}

func volumeSource(v corev1.VolumeSource) (string, error) {
	switch {
	case equality.Semantic.DeepEqual(v, corev1.VolumeSource{Secret: v.Secret}):
		if len(v.Secret.Items) > 0 || ptr.Deref(v.Secret.DefaultMode, 0o644) != 0o440 {
			return "", errUnknown
		}
		return "Secret " + v.Secret.SecretName, nil
	case equality.Semantic.DeepEqual(v, corev1.VolumeSource{ConfigMap: v.ConfigMap}):
		return "ConfigMap " + v.ConfigMap.Name, nil
	default:
		return "", errUnknown
	}
}

// selected returns the workloads with pods that have the labels.
func (s *manifestSet) selected(namespace string, labels *metav1.LabelSelector) []workload {
	return slices.DeleteFunc(slices.Clone(s.workloads), func(w workload) bool {
		return w.Namespace != namespace || !matches(labels, w.pod.Labels)
	})
}
