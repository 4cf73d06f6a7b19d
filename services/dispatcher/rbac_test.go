package dispatcher_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"lockstep.internal/libs/kubename"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher"
	"lockstep.internal/tools/testkit/labtest"
)

// install creates the objects of deploy/rbac/dispatcher.yaml for an agent, after calling edit on each, and returns
// the name of the service account.
func (p *fixture) install(edit func(object any)) string {
	p.t.Helper()
	text, err := os.ReadFile("../../deploy/rbac/dispatcher.yaml")
	require.NoError(p.t, err)
	ctx, options := p.context(), metav1.CreateOptions{}
	id := "agent-" + strconv.FormatInt(p.agent, 10)
	for document := range strings.SplitSeq(strings.ReplaceAll(string(text), "agent-1", id), "\n---\n") {
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(document), nil, nil)
		require.NoError(p.t, err)
		edit(object)
		switch o := object.(type) {
		case *corev1.Namespace:
			_, err = p.kube.CoreV1().Namespaces().Create(ctx, o, options)
		case *corev1.ServiceAccount:
			_, err = p.kube.CoreV1().ServiceAccounts(o.Namespace).Create(ctx, o, options)
		case *rbacv1.Role:
			_, err = p.kube.RbacV1().Roles(o.Namespace).Create(ctx, o, options)
		case *rbacv1.RoleBinding:
			_, err = p.kube.RbacV1().RoleBindings(o.Namespace).Create(ctx, o, options)
		case *rbacv1.ClusterRole:
			// All agents share it.
			if _, err = p.kube.RbacV1().ClusterRoles().Create(ctx, o, options); apierrors.IsAlreadyExists(err) {
				err = nil
			}
		case *rbacv1.ClusterRoleBinding:
			_, err = p.kube.RbacV1().ClusterRoleBindings().Create(ctx, o, options)
		case *admissionv1.ValidatingAdmissionPolicy:
			_, err = p.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(ctx, o, options)
		case *admissionv1.ValidatingAdmissionPolicyBinding:
			_, err = p.kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(ctx, o, options)
		default:
			require.Fail(p.t, "unknown object", "%T", object)
		}
		require.NoError(p.t, err)
	}
	return "system:serviceaccount:lockstep-" + id + ":lockstep-dispatcher"
}

func accountGroups() []string {
	return []string{"system:serviceaccounts", "system:authenticated"}
}

// restrictedConfig is the configuration of a dispatcher with only the permissions of the service account.
func (p *fixture) restrictedConfig(account string) dispatcher.Config {
	p.t.Helper()
	raw, err := clientcmd.LoadFromFile(labtest.Kubeconfig(p.t))
	require.NoError(p.t, err)
	for _, user := range raw.AuthInfos {
		user.Impersonate, user.ImpersonateGroups = account, accountGroups()
	}
	cfg := p.config()
	cfg.Kubeconfig = filepath.Join(p.t.TempDir(), "kubeconfig")
	require.NoError(p.t, clientcmd.WriteToFile(*raw, cfg.Kubeconfig))
	return cfg
}

// restriction is the message of the admission policy.
const restriction = "may only write to namespaces that begin with ws-"

// awaitPermissions waits until the API server applies the account's ClusterRole and the admission policy, which it
// does a moment after their creation. It returns a client with the permissions of the account.
func (p *fixture) awaitPermissions(account string) *kubernetes.Clientset {
	p.t.Helper()
	restricted := admin(p.t)
	restricted.Impersonate = rest.ImpersonationConfig{UserName: account, Groups: accountGroups()}
	client, err := kubernetes.NewForConfig(restricted)
	require.NoError(p.t, err)
	require.Eventually(p.t, func() bool {
		// The API server authorizes a request before it applies policies.
		_, err := client.CoreV1().ConfigMaps("default").Create(p.context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "x-"},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), restriction)
	}, timeout, tick, "the policy and the permissions take effect")
	return client
}

// TestFewerKindsNeedFewerPermissions removes the permissions for all kinds that are not allowed from the manifest.
func TestFewerKindsNeedFewerPermissions(t *testing.T) {
	t.Parallel()
	p := newFixture(t)
	few := "lockstep-dispatcher-few-" + strconv.FormatInt(p.agent, 10)
	account := p.install(func(object any) {
		switch o := object.(type) {
		case *rbacv1.ClusterRole:
			o.Name, o.Rules = few, slices.DeleteFunc(
				o.Rules, func(rule rbacv1.PolicyRule) bool { return rule.APIGroups[0] != "" },
			)
			for i := range o.Rules {
				if !slices.Contains(o.Rules[i].Resources, "namespaces") {
					o.Rules[i].Resources = []string{"configmaps"}
				}
			}
		case *rbacv1.ClusterRoleBinding:
			o.RoleRef.Name = few
		}
	})
	p.awaitPermissions(account)
	cfg := p.restrictedConfig(account)
	cfg.AllowedKinds = []string{"Namespace", "ConfigMap"}
	p.start(cfg)
	w := p.workspace()
	w.Manifests = []map[string]any{p.configMap(w, "files", "1")}
	p.desire(w)
	next[events.Applied](p, "applied")
	require.NoError(t, p.kube.CoreV1().ConfigMaps(w.Namespace).Delete(p.context(), "files", metav1.DeleteOptions{}))
	p.control(
		cell.ControlResync(p.agent), events.TypeResyncRequested,
		events.ResyncRequested{Nonce: "n", Cause: events.ResyncRequestCauseOperator},
	)
	require.Len(t, next[events.Applied](p, "applied").Repaired, 1)
	refused := p.workspace()
	refused.Manifests = []map[string]any{p.deployment(refused)}
	p.desire(refused)
	require.Equal(t, "NotAllowed", next[events.ApplyFailed](p, "apply_failed").Reason)
	// Only allowed kinds of an orphan are read.
	w.DesiredRevision, w.Target = 2, events.DesiredTargetTerminated
	w.Manifests = []map[string]any{p.deployment(w), p.configMap(w, "files", "1")}
	p.desire(w)
	require.Equal(t, 2, until[events.Terminated](p, "terminated").DesiredRevision)
}

// requireOwnSecretsClosed checks that the account cannot read the agent's token: not by a read, not by the answer to a
// change, and not by a pod.
func (p *fixture) requireOwnSecretsClosed(client *kubernetes.Clientset) {
	p.t.Helper()
	ctx, own := p.context(), "lockstep-agent-"+strconv.FormatInt(p.agent, 10)
	const name = "agent-credentials"
	_, err := p.kube.CoreV1().Secrets(own).Create(
		ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{},
	)
	require.NoError(p.t, err)
	for _, namespace := range []string{own, "kube-system"} {
		_, err = client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		require.True(p.t, apierrors.IsForbidden(err), "%v", err)
		_, err = client.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{})
		require.True(p.t, apierrors.IsForbidden(err), "%v", err)
	}
	for _, dryRun := range [][]string{nil, {metav1.DryRunAll}} {
		_, err = client.CoreV1().Secrets(own).Patch(
			ctx, name, types.MergePatchType, []byte("{}"), metav1.PatchOptions{DryRun: dryRun},
		)
		require.ErrorContains(p.t, err, restriction)
	}
	_, err = client.AppsV1().Deployments(own).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "thief"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			},
		},
	}, metav1.CreateOptions{})
	require.ErrorContains(p.t, err, restriction)
}

// ownerBinding is the content of the RoleBinding of an owner.
func (p *fixture) ownerBinding() map[string]any {
	return map[string]any{
		"roleRef": map[string]any{
			"apiGroup": rbacv1.GroupName, "kind": "ClusterRole", "name": kubename.OwnerRole(p.agent),
		},
		"subjects": []any{map[string]any{"apiGroup": rbacv1.GroupName, "kind": "User", "name": kubename.User(9)}},
	}
}

// requireOnlyOwnersBound tries to give more with RoleBindings than one person the role of owners in a workspace, with
// the permissions of the account.
func (p *fixture) requireOnlyOwnersBound(client *kubernetes.Clientset, namespace string) {
	p.t.Helper()
	const limit = "may only bind lockstep-agent"
	role := kubename.OwnerRole(p.agent)
	user := rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: kubename.User(9)}
	account := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: "lockstep-dispatcher", Namespace: "kube-system"}
	create := func(namespace, role string, subjects ...rbacv1.Subject) error {
		_, err := client.RbacV1().RoleBindings(namespace).Create(p.context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "x-"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   subjects,
		}, metav1.CreateOptions{})
		return err
	}
	for _, other := range []string{"cluster-admin", "admin", "edit", "view"} {
		err := create(namespace, other, user)
		require.True(p.t, apierrors.IsForbidden(err), "%s: %v", other, err)
	}
	for name, subjects := range map[string][]rbacv1.Subject{
		"itself":       {account},
		"two people":   {user, {APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: kubename.User(10)}},
		"nobody":       nil,
		"a group":      {{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:authenticated"}},
		"another user": {{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:anonymous"}},
	} {
		require.ErrorContains(p.t, create(namespace, role, subjects...), limit, name)
	}
	require.ErrorContains(p.t, create("lockstep-agent-"+strconv.FormatInt(p.agent, 10), role, user), restriction)
	require.ErrorContains(p.t, create("default", role, user), restriction)

	ctx, bindings := p.context(), client.RbacV1().RoleBindings(namespace)
	_, err := bindings.Patch(ctx, "w-owner", types.JSONPatchType, []byte(
		`[{"op":"replace","path":"/subjects/0/name","value":"system:anonymous"}]`), metav1.PatchOptions{})
	require.ErrorContains(p.t, err, limit)
	rules := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}}}
	_, err = client.RbacV1().Roles(namespace).Create(ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "x"}, Rules: rules,
	}, metav1.CreateOptions{})
	require.True(p.t, apierrors.IsForbidden(err), "%v", err)
	_, err = client.RbacV1().ClusterRoles().Patch(ctx, role, types.MergePatchType, []byte(`{"rules":[]}`),
		metav1.PatchOptions{})
	require.True(p.t, apierrors.IsForbidden(err), "%v", err)
	_, err = client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "x"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{user},
	}, metav1.CreateOptions{})
	require.True(p.t, apierrors.IsForbidden(err), "%v", err)
}

func TestPermissionsOfTheManifestSuffice(t *testing.T) {
	t.Parallel()
	p := newFixture(t)
	account := p.install(func(any) {})

	client := p.awaitPermissions(account)
	foreign := "other-" + strconv.FormatInt(p.agent, 10)
	_, err := p.kube.CoreV1().Namespaces().Create(
		p.context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: foreign}}, metav1.CreateOptions{},
	)
	require.NoError(t, err)
	err = client.CoreV1().Namespaces().Delete(p.context(), foreign, metav1.DeleteOptions{})
	require.ErrorContains(t, err, restriction)
	_, err = client.CoreV1().ConfigMaps(
		foreign,
	).Create(p.context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{})
	require.ErrorContains(t, err, restriction)
	_, err = client.CoreV1().Pods("default").List(p.context(), metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err))

	p.requireOwnSecretsClosed(client)

	p.start(p.restrictedConfig(account))

	w := p.workspace()
	namespaced := func(apiVersion, kind, name string, more map[string]any) map[string]any {
		manifest := p.configMap(w, name, "")
		delete(manifest, "data")
		manifest["apiVersion"], manifest["kind"] = apiVersion, kind
		maps.Copy(manifest, more)
		return manifest
	}
	ports := []any{map[string]any{"port": 80}}
	match := map[string]any{"app": "w"}
	w.Manifests = []map[string]any{
		namespaced("v1", "ServiceAccount", "w", map[string]any{"automountServiceAccountToken": false}),
		namespaced("v1", "ResourceQuota", "w", map[string]any{"spec": map[string]any{"hard": map[string]any{"pods": "10"}}}),
		namespaced("v1", "ConfigMap", "w", nil),
		namespaced("v1", "PersistentVolumeClaim", "w", map[string]any{"spec": map[string]any{
			"accessModes": []any{"ReadWriteOnce"}, "resources": map[string]any{"requests": map[string]any{"storage": "1Gi"}},
		}}),
		namespaced("v1", "Service", "w", map[string]any{"spec": map[string]any{"selector": match, "ports": ports}}),
		namespaced(
			"networking.k8s.io/v1", "NetworkPolicy", "w",
			map[string]any{"spec": map[string]any{"podSelector": map[string]any{}}},
		),
		namespaced("rbac.authorization.k8s.io/v1", "RoleBinding", "w-owner", p.ownerBinding()),
		namespaced("apps/v1", "Deployment", "w", map[string]any{"spec": map[string]any{
			"replicas": 1, "selector": map[string]any{"matchLabels": match},
			"template": map[string]any{
				"metadata": map[string]any{"labels": match},
				"spec":     map[string]any{"containers": []any{map[string]any{"name": "main", "image": "registry.example/ide:1"}}},
			},
		}}),
	}
	w.Secrets = []events.SecretReference{{Name: "variables", Digest: "d1"}}
	p.secret("d1", "v")
	p.desire(w)
	require.Len(t, next[events.Applied](p, "applied").Objects, 10)
	p.requireOnlyOwnersBound(client, w.Namespace)
	// Repairs need no other permissions.
	require.NoError(t, p.kube.NetworkingV1().NetworkPolicies(w.Namespace).Delete(p.context(), "w", metav1.DeleteOptions{}))
	require.NoError(t, p.kube.CoreV1().Secrets(w.Namespace).Delete(p.context(), "variables", metav1.DeleteOptions{}))
	require.NoError(t, p.kube.RbacV1().RoleBindings(w.Namespace).Delete(p.context(), "w-owner", metav1.DeleteOptions{}))
	p.control(
		cell.ControlResync(p.agent), events.TypeResyncRequested,
		events.ResyncRequested{Nonce: "n", Cause: events.ResyncRequestCauseOperator},
	)
	require.Len(t, next[events.Applied](p, "applied").Repaired, 3)
	w.DesiredRevision = 2
	w.Manifests, w.Secrets = w.Manifests[:1], nil
	p.desire(w)
	require.Len(t, next[events.Applied](p, "applied").Pruned, 8)
	w.DesiredRevision, w.Target, w.Manifests = 3, events.DesiredTargetTerminated, nil
	p.desire(w)
	until[events.Terminated](p, "terminated")
}
