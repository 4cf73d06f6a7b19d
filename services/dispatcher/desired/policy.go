package desired

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/failure"
)

// MaxSize is the maximum size of a desired event's data, in bytes (256 KiB).
const MaxSize = 256 << 10

const (
	// labelPodSecurity is the label with the pod security level that a namespace enforces.
	labelPodSecurity = "pod-security.kubernetes.io/enforce"
	// labelPodSecurityVersion is the label with the version of that level. The level of an old version allows more.
	labelPodSecurityVersion = labelPodSecurity + "-version"
	latestPodSecurity       = "latest"
)

// PodSecurity is a level of pod security; higher is stricter.
type PodSecurity int

// Levels of pod security.
const (
	PodSecurityPrivileged PodSecurity = iota
	PodSecurityBaseline
	PodSecurityRestricted
)

// ParsePodSecurity reads the name of a level: privileged, baseline or restricted.
func ParsePodSecurity(name string) (PodSecurity, bool) {
	level := slices.Index([]string{"privileged", "baseline", "restricted"}, name)
	return PodSecurity(level), level >= 0
}

// String is the level's name.
func (p PodSecurity) String() string {
	switch p {
	case PodSecurityPrivileged:
		return "privileged"
	case PodSecurityBaseline:
		return "baseline"
	case PodSecurityRestricted:
		return "restricted"
	default:
		return "unknown"
	}
}

// Policy is what the agent lets the control plane do in its cluster. All fields are required.
type Policy struct {
	Agent int64
	// NamespacePrefix is the required prefix of every workspace's namespace.
	NamespacePrefix string
	// PodSecurity is the minimum pod security level of every namespace.
	PodSecurity PodSecurity
	// Kinds that are applied, by name; see [KindNames]. Namespace is always among them.
	Kinds []string
}

// Check returns nil if the workspace may be applied, and the reason otherwise. A rejection is final for the revision.
func (p Policy) Check(w Workspace) *failure.Failure {
	if w.Size > MaxSize {
		return failure.NewFinal(
			failure.TooLarge, nil,
			"the workspace's manifests are %d bytes; at most %d are applied. Make the template smaller", w.Size, MaxSize,
		)
	}
	if refusal := p.checkNamespace(w.Namespace); refusal != nil {
		return refusal
	}
	switch w.Target {
	case events.DesiredTargetTerminated:
		return p.checkReferences(w)
	case events.DesiredTargetRunning, events.DesiredTargetStopped:
	default:
		return malformed("the target %q is not running, stopped or terminated", w.Target)
	}
	if len(validation.IsDNS1123Label(w.ID)) > 0 {
		return malformed("the workspace's id %q is not a DNS label", w.ID)
	}
	if len(w.Objects) == 0 {
		return malformed("the target is %s, but the desired state has no manifests", w.Target)
	}
	seen := make(map[Reference]bool, len(w.Objects)+len(w.Secrets))
	for _, object := range w.Objects {
		if refusal := p.checkObject(w, object); refusal != nil {
			return refusal
		}
		if seen[object.Reference] {
			return malformed("%s is listed twice", failure.Describe(object.Reference))
		}
		seen[object.Reference] = true
	}
	for _, secret := range w.Secrets {
		reference := SecretReference(w.Namespace, secret.Name)
		if len(validation.IsDNS1123Subdomain(secret.Name)) > 0 || secret.Digest == "" || seen[reference] {
			return malformed("the Secret %q has no valid name, no digest, or is listed twice", secret.Name)
		}
		if _, refusal := p.checkKind(reference); refusal != nil {
			return refusal
		}
		seen[reference] = true
	}
	return nil
}

// checkReferences checks the manifests of a desired state that terminates. Only the deletion of an orphan (a Deployment
// of a workspace that the control plane does not know) has them, and they have no content. Kinds that this agent does
// not apply are allowed, see [Policy.DeletableObjects].
func (p Policy) checkReferences(w Workspace) *failure.Failure {
	var refused *failure.Failure
	allowed := 0
	for _, object := range w.Objects {
		kind, refusal := p.checkKind(object.Reference)
		if refusal != nil {
			refused = refusal
			continue
		}
		allowed++
		if refusal := checkScope(w, kind, object.Reference); refusal != nil {
			return refusal
		}
		if len(validation.IsDNS1123Subdomain(object.Name)) > 0 {
			return malformed("%s has no valid name", failure.Describe(object.Reference))
		}
	}
	if allowed > 0 {
		return nil
	}
	return refused
}

// DeletableObjects returns the objects of an orphan whose kinds are allowed. The agent cannot have created the
// others.
func (p Policy) DeletableObjects(w Workspace) []Object {
	return slices.DeleteFunc(slices.Clone(w.Objects), func(object Object) bool {
		_, refusal := p.checkKind(object.Reference)
		return refusal != nil
	})
}

// checkKind finds the kind of an object that may be touched.
func (p Policy) checkKind(reference Reference) (Kind, *failure.Failure) {
	kind, known := LookupKind(reference.ApiVersion, reference.Kind)
	if !known {
		return kind, notAllowed(&reference, "%s: this agent does not apply objects of this kind", failure.Describe(reference))
	}
	if !slices.Contains(p.Kinds, kind.Name) {
		return kind, notAllowed(
			&reference, "%s: this agent is configured to apply only objects of the kinds %s", failure.Describe(reference),
			strings.Join(p.Kinds, ", "),
		)
	}
	return kind, nil
}

// checkScope rejects objects outside of the workspace's namespace.
func checkScope(w Workspace, kind Kind, reference Reference) *failure.Failure {
	switch {
	case kind.Namespaced && reference.Namespace != w.Namespace:
		return notAllowed(
			&reference, "%s: every object of the workspace must be in its namespace %s", failure.Describe(reference),
			w.Namespace,
		)
	case !kind.Namespaced && (reference.Name != w.Namespace || reference.Namespace != ""):
		return notAllowed(
			&reference, "%s: the only namespace of the workspace is %s", failure.Describe(reference), w.Namespace,
		)
	default:
		return nil
	}
}

func (p Policy) checkNamespace(name string) *failure.Failure {
	if !strings.HasPrefix(name, p.NamespacePrefix) || len(validation.IsDNS1123Label(name)) > 0 {
		return notAllowed(
			nil, "namespace %q: this agent only touches namespaces whose name begins with %s", name, p.NamespacePrefix,
		)
	}
	return nil
}

func (p Policy) checkObject(w Workspace, object Object) *failure.Failure {
	kind, refusal := p.checkKind(object.Reference)
	if refusal != nil {
		return refusal
	}
	if refusal := checkScope(w, kind, object.Reference); refusal != nil {
		return refusal
	}
	switch {
	case kind.Name == KindSecret:
		return notAllowed(
			&object.Reference, "%s: a Secret must not be a manifest; reference it by name and digest in secrets",
			failure.Describe(object.Reference),
		)
	case kind.Name == "ServiceAccount" && object.Name == "default",
		kind.Name == "ConfigMap" && object.Name == "kube-root-ca.crt":
		return notAllowed(&object.Reference, "%s: the cluster makes this object itself", failure.Describe(object.Reference))
	case len(validation.IsDNS1123Subdomain(object.Name)) > 0:
		return malformed("%s has no valid name", failure.Describe(object.Reference))
	}
	if err := p.checkContent(kind, object.Manifest); err != nil {
		return notAllowed(&object.Reference, "%s: %v", failure.Describe(object.Reference), err)
	}
	return p.checkMetadata(w, object)
}

// checkContent checks the kinds that reach beyond the namespace or give people access.
func (p Policy) checkContent(kind Kind, manifest map[string]any) error {
	switch kind.Name {
	case KindService:
		return checkService(manifest)
	case KindRoleBinding:
		return checkRoleBinding(manifest, p.Agent)
	default:
		return nil
	}
}

// forbiddenMetadata lists the fields that the API server sets, or that link the object to other objects.
var forbiddenMetadata = []string{
	"uid", "resourceVersion", "generateName", "managedFields", "ownerReferences", "finalizers", "deletionTimestamp",
	"selfLink",
} //nolint:gochecknoglobals // a constant

func (p Policy) checkMetadata(w Workspace, object Object) *failure.Failure {
	metadata, _ := object.Manifest["metadata"].(map[string]any)
	for _, field := range forbiddenMetadata {
		if _, present := metadata[field]; present {
			return notAllowed(&object.Reference, "%s: metadata.%s must not be set", failure.Describe(object.Reference), field)
		}
	}
	labels := stringMap(metadata["labels"])
	if !(Owner{Agent: p.Agent, Workspace: w.ID}).Owns(labels) {
		return notAllowed(&object.Reference, "%s: must carry the labels %s=%s and %s=%s", failure.Describe(object.Reference),
			LabelAgent, strconv.FormatInt(p.Agent, 10), LabelWorkspace, w.ID)
	}
	if object.Kind == KindNamespace {
		return p.checkPodSecurity(object.Reference, labels)
	}
	return nil
}

func (p Policy) checkPodSecurity(namespace Reference, labels map[string]string) *failure.Failure {
	if name, present := labels[labelPodSecurity]; present {
		if level, known := ParsePodSecurity(name); !known || level < p.PodSecurity {
			return notAllowed(
				&namespace, "%s: pod security level %q is below %s, the minimum of this agent",
				failure.Describe(namespace), name, p.PodSecurity,
			)
		}
	}
	if version, present := labels[labelPodSecurityVersion]; present && version != latestPodSecurity {
		return notAllowed(
			&namespace, "%s: pod security version %.80q must be %s", failure.Describe(namespace), version, latestPodSecurity,
		)
	}
	return nil
}

// Namespace returns the Namespace manifest from the desired state, or a default one if the desired state has none. If
// it sets no pod security level, Namespace adds the policy's level.
func (p Policy) Namespace(w Workspace) Object {
	object := Object{Reference: NamespaceReference(w.Namespace), Manifest: map[string]any{
		"apiVersion": "v1", "kind": KindNamespace, "metadata": map[string]any{"name": w.Namespace},
	}}
	labels := map[string]any{labelPodSecurity: p.PodSecurity.String()}
	for key, value := range (Owner{Agent: p.Agent, Workspace: w.ID}).Labels() {
		labels[key] = value
	}
	for _, given := range w.Objects {
		if given.Reference != object.Reference {
			continue
		}
		metadata, _ := given.Manifest["metadata"].(map[string]any)
		for key, value := range stringMap(metadata["labels"]) {
			labels[key] = value
		}
		object.Manifest = maps.Clone(given.Manifest)
		object.Manifest["metadata"] = maps.Clone(metadata)
	}
	object.Manifest["metadata"].(map[string]any)["labels"] = labels //nolint:errcheck,forcetypeassert // set above
	return object
}

func stringMap(value any) map[string]string {
	raw, _ := value.(map[string]any)
	labels := make(map[string]string, len(raw))
	for key, value := range raw {
		if text, ok := value.(string); ok {
			labels[key] = text
		}
	}
	return labels
}

func notAllowed(object *Reference, format string, args ...any) *failure.Failure {
	return failure.NewFinal(
		failure.NotAllowed,
		object,
		format+". It is not retried before the template or the agent's configuration changes",
		args...)
}
