package helm_test

import (
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
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
		"deploys and runners have the same connection string": {
			"secretNames": values{"state": "a", "deploys": "b", "runners": "b"},
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
		for _, w := range render(t, loaded, s.name, merge(s.change, everyService())).workloads() {
			service := strings.TrimPrefix(w.Name, releaseName+"-")
			for _, e := range w.template.Spec.Containers[0].Env {
				section, _ := s.change[service].(values)
				settings, _ := section["settings"].(values)
				_, isSetting := settings[e.Name]
				if !strings.HasPrefix(e.Name, "LOCKSTEP_") || isSetting || tried.Has(service+e.Name) {
					continue
				}
				tried.Insert(service + e.Name)
				given := merge(everyService(), values{service: values{"enabled": true, "settings": values{e.Name: "x"}}})
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
