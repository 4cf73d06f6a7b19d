package desired

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"lockstep.internal/schemas/gen/events"
)

// Reference names an object of the cluster. It is comparable.
type Reference = events.ObjectReference

// Kind is one kind of object that workspaces may consist of.
type Kind struct {
	APIVersion string
	Name       string
	// Resource is the API resource of the kind.
	Resource   schema.GroupVersionResource
	Namespaced bool
}

// Kinds returns the kinds that the dispatcher may apply. The list is fixed, and API discovery is not used: the
// dispatcher never touches custom kinds, and a broken APIService cannot block it.
func Kinds() []Kind {
	core := func(name, resource string) Kind {
		return Kind{
			APIVersion: "v1",
			Name:       name,
			Resource:   schema.GroupVersionResource{Version: "v1", Resource: resource},
			Namespaced: true,
		}
	}
	grouped := func(group, name, resource string) Kind {
		return Kind{
			APIVersion: group + "/v1", Name: name, Namespaced: true,
			Resource: schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource},
		}
	}
	namespace := core(KindNamespace, "namespaces")
	namespace.Namespaced = false
	return []Kind{
		namespace,
		core("ServiceAccount", "serviceaccounts"),
		core("ResourceQuota", "resourcequotas"),
		core("ConfigMap", "configmaps"),
		core(KindSecret, "secrets"),
		core(KindPersistentVolumeClaim, "persistentvolumeclaims"),
		core(KindService, "services"),
		grouped("networking.k8s.io", "NetworkPolicy", "networkpolicies"),
		grouped(rbacv1.GroupName, KindRoleBinding, "rolebindings"),
		grouped("apps", KindDeployment, "deployments"),
	}
}

// KindNames are the names of [Kinds], in the same order.
func KindNames() []string {
	kinds := Kinds()
	names := make([]string, len(kinds))
	for i, kind := range kinds {
		names[i] = kind.Name
	}
	return names
}

// Kinds with rules of their own.
const (
	KindNamespace             = "Namespace"
	KindSecret                = "Secret"
	KindPersistentVolumeClaim = "PersistentVolumeClaim"
	KindService               = "Service"
	KindDeployment            = "Deployment"
	KindRoleBinding           = "RoleBinding"
)

// LookupKind returns the kind of a reference, or false if it is not in [Kinds].
func LookupKind(apiVersion, name string) (Kind, bool) {
	for _, kind := range Kinds() {
		if kind.APIVersion == apiVersion && kind.Name == name {
			return kind, true
		}
	}
	return Kind{}, false
}

// NamespaceReference names a namespace.
func NamespaceReference(name string) Reference {
	return Reference{ApiVersion: "v1", Kind: KindNamespace, Name: name}
}

// SecretReference names a Secret.
func SecretReference(namespace, name string) Reference {
	return Reference{ApiVersion: "v1", Kind: KindSecret, Namespace: namespace, Name: name}
}
