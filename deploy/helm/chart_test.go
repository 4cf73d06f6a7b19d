package helm_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"lockstep.internal/tools/testkit/labtest"
)

func TestMain(m *testing.M) {
	if os.Getenv(helmVariable) != "" {
		runHelm()
		return
	}
	labtest.Main(m)
}

const (
	chartDir    = "lockstep"
	releaseName = "ls"
)

type values = map[string]any

func load(t *testing.T) *chart.Chart {
	t.Helper()
	loaded, err := loader.Load(chartDir)
	require.NoError(t, err)
	return loaded
}

// rendered are the objects of a release by kind and name.
type rendered struct {
	t    *testing.T
	name string
	all  map[string]string
}

func render(t *testing.T, loaded *chart.Chart, name string, given values) rendered {
	t.Helper()
	options := common.ReleaseOptions{Name: releaseName, Namespace: "here", Revision: 1, IsInstall: true}
	input, err := util.ToRenderValues(loaded, given, options, common.DefaultCapabilities)
	require.NoError(t, err, name)
	files, err := engine.Render(loaded, input)
	require.NoError(t, err, name)
	r := rendered{t: t, name: name, all: map[string]string{}}
	for path, content := range files {
		if filepath.Ext(path) != ".yaml" {
			continue
		}
		r.add(content)
	}
	return r
}

func (r rendered) add(manifest string) {
	r.t.Helper()
	for document := range strings.SplitSeq("\n"+manifest, "\n---\n") {
		var object unstructured.Unstructured
		require.NoError(r.t, yaml.Unmarshal([]byte(document), &object.Object), "%s:\n%s", r.name, document)
		if len(object.Object) == 0 {
			continue
		}
		key := object.GetKind() + "/" + object.GetName()
		require.NotContains(r.t, r.all, key, r.name)
		require.Equal(r.t, "here", object.GetNamespace(), key)
		r.all[key] = document
	}
}

// decode decodes an object and refuses unknown fields.
func decode[T any](r rendered, key string) T {
	r.t.Helper()
	require.Contains(r.t, r.all, key, r.name)
	var into T
	require.NoError(r.t, yaml.UnmarshalStrict([]byte(r.all[key]), &into), "%s %s", r.name, key)
	return into
}

func each[T any](r rendered, kind string, use func(T)) {
	r.t.Helper()
	for key := range r.all {
		if strings.HasPrefix(key, kind+"/") {
			use(decode[T](r, key))
		}
	}
}

// workload is what has pods.
type workload struct {
	metav1.ObjectMeta

	selector *metav1.LabelSelector
	template corev1.PodTemplateSpec
}

func (r rendered) workloads() []workload {
	r.t.Helper()
	var all []workload
	each(r, "Deployment", func(d appsv1.Deployment) {
		all = append(all, workload{d.ObjectMeta, d.Spec.Selector, d.Spec.Template})
	})
	each(r, "StatefulSet", func(s appsv1.StatefulSet) {
		all = append(all, workload{s.ObjectMeta, s.Spec.Selector, s.Spec.Template})
	})
	each(r, "Job", func(j batchv1.Job) { all = append(all, workload{j.ObjectMeta, nil, j.Spec.Template}) })
	return all
}

func TestChartPassesLint(t *testing.T) {
	t.Parallel()
	for _, message := range lint.RunAll(chartDir, values{}, "here").Messages {
		require.LessOrEqual(t, message.Severity, support.InfoSev, message.Error())
	}
}

func TestChartHasTheAlerts(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile(filepath.Join("..", "alerts.yaml"))
	require.NoError(t, err)
	var want, got values
	require.NoError(t, yaml.Unmarshal(source, &want))
	all := render(t, load(t), "rules", values{"monitoring": values{"rules": values{"enabled": true}}}).all
	require.NoError(t, yaml.Unmarshal([]byte(all["PrometheusRule/"+releaseName]), &got))
	require.Equal(t, want, got["spec"])
}

func TestInvalidValuesAreRefused(t *testing.T) {
	t.Parallel()
	loaded := load(t)
	for name, given := range map[string]values{
		"a typing error":           {"statee": values{}},
		"two NATS servers":         {"nats": values{"replicas": 2}},
		"a setting of another one": {"state": values{"settings": values{"PATH": "/"}}},
		"a string as a number":     {"relay": values{"replicas": "2"}},
		"telemetry without a port": {"telemetry": values{"otlpEndpoint": "http://collector"}},
		"a peer that is a host":    {"telemetry": values{"peers": []any{values{"host": "collector"}}}},
	} {
		options := common.ReleaseOptions{Name: releaseName, Namespace: "here"}
		_, err := util.ToRenderValues(loaded, given, options, common.DefaultCapabilities)
		require.ErrorContains(t, err, "values don't meet the specifications of the schema", name)
	}
}

func TestServicesDoNotShareARoleOfPostgreSQL(t *testing.T) {
	t.Parallel()
	loaded := load(t)
	for want, given := range map[string]values{
		"set postgresql.urls or postgresql.secretNames": {"url": "postgres://x"},
		"deploys needs a role of its own":               {"urls": values{"state": "postgres://x"}},
		"state needs a role of its own":                 {"secretNames": values{"deploys": "db"}},
		"state and deploys have the same connection string": {
			"urls": values{"state": "postgres://x", "deploys": "postgres://x"},
		},
	} {
		options := common.ReleaseOptions{Name: releaseName, Namespace: "here"}
		input, err := util.ToRenderValues(loaded, values{"postgresql": given}, options, common.DefaultCapabilities)
		require.NoError(t, err)
		_, err = engine.Render(loaded, input)
		require.ErrorContains(t, err, want)
	}
}

func TestRolesAreCreatedInEachRevision(t *testing.T) {
	t.Parallel()
	loaded := load(t)
	names := sets.New[string]()
	for _, revision := range []int{1, 2, 2} {
		options := common.ReleaseOptions{Name: releaseName, Namespace: "here", Revision: revision}
		input, err := util.ToRenderValues(loaded, values{}, options, common.DefaultCapabilities)
		require.NoError(t, err)
		files, err := engine.Render(loaded, input)
		require.NoError(t, err)
		r := rendered{t: t, name: "revision", all: map[string]string{}}
		r.add(files["lockstep/templates/postgresql.yaml"])
		each(r, "Job", func(j batchv1.Job) { names.Insert(j.Name) })
	}
	require.Len(t, names, 2)
	off := values{"enabled": false}
	roles := 0
	each(render(t, loaded, "restore", values{"state": off, "deploys": off}), "Job", func(j batchv1.Job) {
		if j.Labels["app.kubernetes.io/component"] == "roles" {
			roles++
		}
	})
	require.Equal(t, 1, roles, "a dump is restored as the roles of the services, before they are on")
}

// existing is a cluster that has objects.
type existing struct{ dynamic.Interface }

func (e existing) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	group, err := schema.ParseGroupVersion(apiVersion)
	resource, _ := meta.UnsafeGuessKindToResource(group.WithKind(kind))
	return e.Resource(resource), true, err
}

func TestOneServerDoesNotBecomeACluster(t *testing.T) {
	t.Parallel()
	loaded := load(t)
	withServers := func(n int) values { return values{"nats": values{"replicas": n}} }
	for before, after := range map[int]map[int]bool{1: {1: true, 3: false, 5: false}, 3: {1: false, 3: true, 5: true}} {
		r := render(t, loaded, "before", withServers(before))
		servers := decode[appsv1.StatefulSet](r, "StatefulSet/"+releaseName+"-nats")
		cluster := existing{fake.NewSimpleDynamicClient(scheme.Scheme, &servers)}
		for replicas, permitted := range after {
			options := common.ReleaseOptions{Name: releaseName, Namespace: "here", Revision: 2, IsUpgrade: true}
			input, err := util.ToRenderValues(loaded, withServers(replicas), options, common.DefaultCapabilities)
			require.NoError(t, err)
			_, err = engine.RenderWithClientProvider(loaded, input, cluster)
			if permitted {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, "their streams would be lost")
			}
		}
	}
}

func TestStreamsHaveAsManyReplicasAsServersAllow(t *testing.T) {
	t.Parallel()
	loaded := load(t)
	for want, given := range map[string]values{
		"3": {}, "1": {"nats": values{"replicas": 1}},
		"5": {"streams": values{"replicas": 5}, "nats": values{"url": "nats://a"}},
	} {
		r := render(t, loaded, want, given)
		state := decode[appsv1.Deployment](r, "Deployment/"+releaseName+"-state")
		require.Contains(t, state.Spec.Template.Spec.Containers[0].Env,
			corev1.EnvVar{Name: "LOCKSTEP_STREAMS_REPLICAS", Value: want})
		relay := decode[appsv1.StatefulSet](r, "StatefulSet/"+releaseName+"-relay")
		require.Contains(t, relay.Spec.Template.Spec.Containers[0].Env,
			corev1.EnvVar{Name: "LOCKSTEP_REGISTRY_REPLICAS", Value: want})
	}
}

func TestOnlyPeersReachPortsThatAreNotPublic(t *testing.T) {
	t.Parallel()
	r := render(t, load(t), "defaults", values{})
	monitoring := map[string]string{corev1.LabelMetadataName: "monitoring"}
	for name, port := range map[string]string{
		"relay": "internal", "nats": "cluster", "postgresql": "postgresql", "state": "ops", "deploys": "ops",
	} {
		policy := decode[networkingv1.NetworkPolicy](r, "NetworkPolicy/"+releaseName+"-"+name)
		found := false
		for _, rule := range policy.Spec.Ingress {
			for _, p := range rule.Ports {
				if p.Port.String() == port {
					found = true
					require.NotEmpty(t, rule.From, "%s: %s", name, port)
				}
			}
			for _, from := range rule.From {
				if rule.Ports[0].Port.String() == "ops" {
					require.Equal(t, monitoring, from.NamespaceSelector.MatchLabels, name)
					continue
				}
				require.Nil(t, from.NamespaceSelector, name)
				require.NotEmpty(t, from.PodSelector.MatchLabels, name)
			}
		}
		require.True(t, found, name)
	}
}

func TestPoliciesPermitTheTelemetryEndpoint(t *testing.T) {
	t.Parallel()
	loaded := load(t)
	monitoring := metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "monitoring"}}
	for name, given := range map[string]struct {
		telemetry values
		want      []networkingv1.NetworkPolicyEgressRule
	}{
		"no endpoint": {values{}, nil},
		"anywhere": {values{"otlpEndpoint": "https://collector7:4318/v1"}, []networkingv1.NetworkPolicyEgressRule{{
			Ports: tcp(4318),
		}}},
		"a namespace": {values{"otlpEndpoint": "http://collector.monitoring:4317", "peers": []any{
			values{"namespaceSelector": values{"matchLabels": values{corev1.LabelMetadataName: "monitoring"}}},
		}}, []networkingv1.NetworkPolicyEgressRule{{
			Ports: tcp(4317), To: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &monitoring}},
		}}},
	} {
		r := render(t, loaded, name, values{"telemetry": given.telemetry})
		before := render(t, loaded, name, values{})
		for _, service := range []string{"state", "deploys", "relay"} {
			key := "NetworkPolicy/" + releaseName + "-" + service
			without := decode[networkingv1.NetworkPolicy](before, key).Spec.Egress
			var added []networkingv1.NetworkPolicyEgressRule
			for _, rule := range decode[networkingv1.NetworkPolicy](r, key).Spec.Egress {
				if !slices.ContainsFunc(without, func(o networkingv1.NetworkPolicyEgressRule) bool {
					return equality.Semantic.DeepEqual(o, rule)
				}) {
					added = append(added, rule)
				}
			}
			require.Equal(t, given.want, added, "%s: %s", name, service)
		}
	}
}

func tcp(port int32) []networkingv1.NetworkPolicyPort {
	return []networkingv1.NetworkPolicyPort{{Protocol: new(corev1.ProtocolTCP), Port: new(intstr.FromInt32(port))}}
}

// TestSettingsDoNotRepeatVariablesOfTheChart tries, as a setting of each service, each variable that the chart sets
// with any value.
func TestSettingsDoNotRepeatVariablesOfTheChart(t *testing.T) {
	t.Parallel()
	loaded := load(t)
	defaults, err := util.ToRenderValues(loaded, values{}, common.ReleaseOptions{}, common.DefaultCapabilities)
	require.NoError(t, err)
	tried := sets.New[string]()
	for _, s := range append(switches, struct {
		name   string
		change values
	}{"defaults", values{}}) {
		for _, w := range render(t, loaded, s.name, s.change).workloads() {
			service := strings.TrimPrefix(w.Name, releaseName+"-")
			for _, e := range w.template.Spec.Containers[0].Env {
				section, _ := s.change[service].(values)
				settings, _ := section["settings"].(values)
				_, isSetting := settings[e.Name]
				if !strings.HasPrefix(e.Name, "LOCKSTEP_") || isSetting || tried.Has(service+e.Name) {
					continue
				}
				tried.Insert(service + e.Name)
				given := values{service: values{"settings": values{e.Name: "x"}}}
				options := common.ReleaseOptions{Name: releaseName, Namespace: "here"}
				input, err := util.ToRenderValues(loaded, given, options, common.DefaultCapabilities)
				require.NoError(t, err)
				_, err = engine.Render(loaded, input)
				require.ErrorContains(t, err, service+".settings."+e.Name+": ")
				if _, value, found := strings.Cut(err.Error(), "use the value "); found {
					parent, name := "Values."+value[:strings.LastIndex(value, ".")], value[strings.LastIndex(value, ".")+1:]
					section, err := defaults.Table(parent)
					require.NoError(t, err, e.Name)
					require.Contains(t, section, name, "%s: there is no value %s", e.Name, value)
				} else {
					require.ErrorContains(t, err, "the chart sets it, and it cannot be changed")
				}
			}
		}
	}
	require.Greater(t, tried.Len(), 40)
}

// TestMonitoringOfNATSIsClosed is about a port that asks for no key. Probes come from the node, which no policy
// concerns.
func TestMonitoringOfNATSIsClosed(t *testing.T) {
	t.Parallel()
	r := render(t, load(t), "defaults", values{})
	var open []string
	for _, rule := range decode[networkingv1.NetworkPolicy](r, "NetworkPolicy/"+releaseName+"-nats").Spec.Ingress {
		for _, p := range rule.Ports {
			open = append(open, p.Port.String())
		}
	}
	require.Equal(t, []string{"client", "cluster"}, open)
	each(r, "Service", func(s corev1.Service) {
		for _, p := range s.Spec.Ports {
			require.NotEqual(t, "monitor", p.TargetPort.String(), s.Name)
		}
	})
}

// switches turn parts of the chart on or off.
var switches = []struct { //nolint:gochecknoglobals // a table
	name   string
	change values
}{
	{"without state", values{"state": values{"enabled": false}}},
	{"without deploys", values{"deploys": values{"enabled": false}}},
	{"without relay", values{"relay": values{"enabled": false}}},
	{"without keys", values{"keys": values{"enabled": false}}},
	{"other NATS", values{"nats": values{"url": "tls://a:4222,tls://b:4223"}}},
	{"database by URL", values{"postgresql": values{"urls": values{
		"state": "postgres://x_state@db:5433/x", "deploys": "postgres://x_deploys@db:5433/x",
	}}}},
	{"database by Secret", values{"postgresql": values{
		"secretNames": values{"state": "state-db", "deploys": "deploys-db"}, "secretKey": "dsn", "port": 5433,
	}}},
	{"TLS", values{
		"nats": values{"tls": values{"secretName": "nats-tls"}}, "state": values{"tls": values{"secretName": "api-tls"}},
		"deploys": values{"tls": values{"secretName": "api-tls"}}, "relay": values{"tls": values{"secretName": "relay-tls"}},
	}},
	{"ingress, monitoring, tracing, sinks, callers, settings", values{
		"state": values{
			"ingress":  values{"enabled": true, "host": "a.example", "tlsSecretName": "a"},
			"settings": values{"LOCKSTEP_TELEMETRY_LOG_LEVEL": "debug"},
		},
		"deploys": values{
			"ingress": values{"enabled": true, "host": "d.example", "className": "x", "annotations": values{"a": "b"}},
			"sinks":   values{"secretName": "sinks"},
		},
		"relay":     values{"callers": values{"secretName": "callers"}, "hosts": []any{"relay.example"}},
		"telemetry": values{"otlpEndpoint": "http://collector:4317"},
		"monitoring": values{
			"serviceMonitors": values{"enabled": true, "labels": values{"team": "a"}}, "rules": values{"enabled": true},
		},
	}},
	{"without policies and budgets", values{
		"networkPolicies": values{"enabled": false}, "podDisruptionBudgets": values{"enabled": false},
	}},
}

func TestEveryCombinationOfSwitchesIsConsistent(t *testing.T) {
	t.Parallel()
	loaded := load(t)
	for set := range 1 << len(switches) {
		given, name := values{}, "defaults"
		for i, s := range switches {
			if set&(1<<i) != 0 {
				given, name = merge(given, s.change), name+", "+s.name
			}
		}
		requireConsistent(render(t, loaded, name, given), given)
	}
}

func merge(into, from values) values {
	out := values{}
	maps.Copy(out, into)
	for key, value := range from {
		inner, both := out[key].(values)
		if outer, is := value.(values); is && both {
			out[key] = merge(inner, outer)
			continue
		}
		out[key] = value
	}
	return out
}

// requireConsistent checks what holds with all values.
func requireConsistent(r rendered, given values) {
	r.t.Helper()
	for _, service := range []string{"state", "deploys", "relay"} {
		section, _ := given[service].(values)
		enabled, isSet := section["enabled"].(bool)
		found := false
		for key := range r.all {
			found = found || strings.HasSuffix(key, "/"+releaseName+"-"+service)
		}
		require.Equal(r.t, !isSet || enabled, found, "%s: %s", r.name, service)
	}
	var pods []workload
	for _, w := range r.workloads() {
		requireHardened(r, w)
		requireOwnSecrets(r, w)
		if w.selector != nil {
			pods = append(pods, w)
		}
	}
	matches := func(what string, selector map[string]string) workload {
		r.t.Helper()
		var found []workload
		for _, w := range pods {
			if labels.SelectorFromSet(selector).Matches(labels.Set(w.template.Labels)) {
				found = append(found, w)
			}
		}
		require.Len(r.t, found, 1, "%s: %s", r.name, what)
		return found[0]
	}
	each(r, "Service", func(s corev1.Service) {
		ports := sets.New[string]()
		for _, p := range matches(s.Name, s.Spec.Selector).template.Spec.Containers[0].Ports {
			ports.Insert(p.Name)
		}
		for _, p := range s.Spec.Ports {
			require.Contains(r.t, ports, p.TargetPort.String(), "%s: %s", r.name, s.Name)
			if p.TargetPort.String() == "ops" {
				require.Equal(r.t, corev1.ClusterIPNone, s.Spec.ClusterIP, "%s: %s", r.name, s.Name)
			}
		}
	})
	each(r, "PodDisruptionBudget", func(b policyv1.PodDisruptionBudget) { matches(b.Name, b.Spec.Selector.MatchLabels) })
	each(r, "Ingress", func(i networkingv1.Ingress) {
		backend := i.Spec.Rules[0].HTTP.Paths[0].Backend.Service
		service := decode[corev1.Service](r, "Service/"+backend.Name)
		require.Equal(r.t, backend.Port.Name, service.Spec.Ports[0].Name)
	})
	each(r, "NetworkPolicy", func(p networkingv1.NetworkPolicy) {
		if !slices.Contains([]string{releaseName + "-keys", releaseName + "-roles"}, p.Name) {
			matches(p.Name, p.Spec.PodSelector.MatchLabels)
		}
		require.Len(r.t, p.Spec.PolicyTypes, 2, p.Name)
		for _, rule := range p.Spec.Egress {
			require.NotEmpty(r.t, rule.Ports, "%s: %s may reach every port", r.name, p.Name)
		}
	})
	requireOnlyKeysHasPermissions(r)
}

// requireHardened checks the pods: no root, no writable root, no capabilities, a bound on memory, no token of
// Kubernetes.
func requireHardened(r rendered, w workload) {
	r.t.Helper()
	pod, at := w.template.Spec, r.name+": "+w.Name
	require.True(r.t, *pod.SecurityContext.RunAsNonRoot, at)
	require.Equal(r.t, corev1.SeccompProfileTypeRuntimeDefault, pod.SecurityContext.SeccompProfile.Type, at)
	require.Equal(r.t, w.Name == releaseName+"-keys", *pod.AutomountServiceAccountToken, at)
	require.Contains(r.t, r.all, "ServiceAccount/"+pod.ServiceAccountName, at)
	require.Len(r.t, pod.Containers, 1, at)
	c := pod.Containers[0]
	require.True(r.t, *c.SecurityContext.ReadOnlyRootFilesystem, at)
	require.False(r.t, *c.SecurityContext.AllowPrivilegeEscalation, at)
	require.Equal(r.t, []corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop, at)
	require.False(r.t, c.Resources.Limits.Memory().IsZero(), at)
	if w.selector != nil {
		require.NotNil(r.t, c.StartupProbe, at)
		require.NotNil(r.t, c.LivenessProbe, at)
		require.NotNil(r.t, c.ReadinessProbe, at)
		require.Subset(r.t, w.template.Labels, w.selector.MatchLabels, at)
	}
	mounts := sets.New[string]()
	for _, m := range c.VolumeMounts {
		mounts.Insert(m.Name)
	}
	for _, v := range pod.Volumes {
		require.Contains(r.t, mounts, v.Name, at)
		mounts.Delete(v.Name)
	}
	mounts.Delete("data") // a claim of a StatefulSet
	require.Empty(r.t, mounts, at)
	variables := sets.New[string]()
	for _, e := range c.Env {
		require.NotContains(r.t, variables, e.Name, at)
		variables.Insert(e.Name)
		if path, isFile := strings.CutPrefix(e.Value, "/"); isFile && strings.HasPrefix(e.Name, "LOCKSTEP_") {
			dir, _, _ := strings.Cut(path, "/")
			require.Contains(r.t, mountPaths(c), "/"+dir, "%s: %s", at, e.Name)
		}
	}
}

func mountPaths(c corev1.Container) []string {
	var paths []string
	for _, m := range c.VolumeMounts {
		path, _, _ := strings.Cut(m.MountPath[1:], "/")
		paths = append(paths, "/"+path)
	}
	return paths
}

// secretsOf returns the names of the Secrets that a pod mounts, with the keys; none stands for all.
func secretsOf(pod corev1.PodSpec) map[string][]string {
	found := map[string][]string{}
	add := func(name string, items []corev1.KeyToPath) {
		found[name] = append(found[name], "")
		for _, i := range items {
			found[name] = append(found[name], i.Key)
		}
	}
	for _, v := range pod.Volumes {
		if v.Secret != nil {
			add(v.Secret.SecretName, v.Secret.Items)
		}
		if v.Projected != nil {
			for _, s := range v.Projected.Sources {
				add(s.Secret.Name, s.Secret.Items)
			}
		}
	}
	return found
}

// requireOwnSecrets checks that no program mounts the key of another one.
func requireOwnSecrets(r rendered, w workload) {
	r.t.Helper()
	// Besides the Secret of its own name.
	allowed := map[string][]string{
		"state":      {"ls-admin", "ls-state-database", "state-db", "nats-tls", "api-tls"},
		"deploys":    {"ls-deploys-database", "deploys-db", "nats-tls", "api-tls", "sinks"},
		"roles":      {"ls-postgresql", "ls-state", "ls-deploys"},
		"relay":      {"ls-relay-tls", "relay-tls", "nats-tls", "callers"},
		"nats":       {"nats-tls"},
		"postgresql": {},
		"keys":       {},
	}[w.Labels["app.kubernetes.io/component"]]
	for secret, keys := range secretsOf(w.template.Spec) {
		require.Contains(r.t, append(allowed, w.Name), secret, "%s: %s", r.name, w.Name)
		if secret == "nats-tls" && w.Name != releaseName+"-nats" {
			require.Equal(r.t, []string{"", "ca.crt"}, keys, "%s: %s has the key of NATS", r.name, w.Name)
		}
		if w.Labels["app.kubernetes.io/component"] == "roles" && secret != "ls-postgresql" {
			require.Equal(r.t, []string{"", "database.password"}, keys, "%s: %s", r.name, w.Name)
		}
	}
}

func requireOnlyKeysHasPermissions(r rendered) {
	r.t.Helper()
	each(r, "Role", func(role rbacv1.Role) {
		require.Equal(r.t, releaseName+"-keys", role.Name)
		for _, rule := range role.Rules {
			require.Equal(r.t, []string{"secrets"}, rule.Resources)
			if len(rule.ResourceNames) == 0 {
				require.Equal(r.t, []string{"create"}, rule.Verbs)
			}
		}
	})
	for key := range r.all {
		require.NotContains(r.t, key, "Cluster", r.name)
	}
}
