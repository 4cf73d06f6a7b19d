package helm_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

const runnersName = releaseName + "-runners"

// withRunners returns the values of a release with the service runners.
func withRunners(section values) values {
	return merge(values{"runners": values{"enabled": true}}, values{"runners": section})
}

func variablesOf(d appsv1.Deployment) map[string]string {
	found := map[string]string{}
	for _, e := range d.Spec.Template.Spec.Containers[0].Env {
		found[e.Name] = e.Value
	}
	return found
}

func TestReplicasOfRunnersShareTheVolumeOfArtifacts(t *testing.T) {
	t.Parallel()
	loaded := load(t)
	storage := func(accessMode string) values {
		return values{"disk": values{"storage": values{"accessMode": accessMode}}}
	}
	for name, c := range map[string]struct {
		section  values
		claim    string
		mode     corev1.PersistentVolumeAccessMode // of the claim that the chart makes
		strategy appsv1.DeploymentStrategyType
	}{
		"defaults": {values{}, runnersName, corev1.ReadWriteMany, ""},
		"one replica": {
			values{"replicas": 1, "artifacts": storage("ReadWriteOnce")},
			runnersName, corev1.ReadWriteOnce,
			appsv1.RecreateDeploymentStrategyType,
		},
		"a claim that exists": {values{"artifacts": values{"disk": values{"claimName": "nfs"}}}, "nfs", "", ""},
	} {
		r := render(t, loaded, name, withRunners(c.section))
		deployment := decode[appsv1.Deployment](r, "Deployment/"+runnersName)
		require.Equal(t, c.strategy, deployment.Spec.Strategy.Type, name)
		var claims []string
		for _, v := range deployment.Spec.Template.Spec.Volumes {
			if v.PersistentVolumeClaim != nil {
				require.Equal(t, "artifacts", v.Name)
				claims = append(claims, v.PersistentVolumeClaim.ClaimName)
			}
		}
		require.Equal(t, []string{c.claim}, claims, name)
		require.Contains(t, deployment.Spec.Template.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{
			Name: "artifacts", MountPath: variablesOf(deployment)["LOCKSTEP_ARTIFACTS_STORE_DISK_FOLDER"],
		}, name)
		if c.mode == "" {
			require.NotContains(t, r.all, "PersistentVolumeClaim/"+runnersName, name)
			continue
		}
		claim := decode[corev1.PersistentVolumeClaim](r, "PersistentVolumeClaim/"+runnersName)
		require.Equal(t, []corev1.PersistentVolumeAccessMode{c.mode}, claim.Spec.AccessModes, name)
		require.Equal(t, "keep", claim.Annotations["helm.sh/resource-policy"], "an uninstall leaves the artifacts")
	}
}

func TestArtifactsWithoutAPlaceAreRefused(t *testing.T) {
	t.Parallel()
	loaded := load(t)
	s3 := func(settings values) values { return values{"artifacts": values{"kind": "s3", "s3": settings}} }
	for want, section := range map[string]values{
		"ReadWriteOnce is for one replica": {
			"artifacts": values{"disk": values{"storage": values{"accessMode": "ReadWriteOnce"}}},
		},
		"runners.artifacts.s3.endpoint is missing":   s3(values{"bucket": "b", "secretName": "s"}),
		"runners.artifacts.s3.bucket is missing":     s3(values{"endpoint": "https://s3", "secretName": "s"}),
		"runners.artifacts.s3.secretName is missing": s3(values{"endpoint": "https://s3", "bucket": "b"}),
		"runners.cell.map.secretName is missing":     {"cell": values{"map": values{"url": "nats://map"}}},
	} {
		options := common.ReleaseOptions{Name: releaseName, Namespace: "here"}
		input, err := util.ToRenderValues(loaded, withRunners(section), options, common.DefaultCapabilities)
		require.NoError(t, err)
		_, err = engine.Render(loaded, input)
		require.ErrorContains(t, err, want)
	}
}

func TestRunnersKnowAddresses(t *testing.T) {
	t.Parallel()
	loaded := load(t)
	ingress := func(host, secret string) values {
		return values{"ingress": values{"enabled": true, "host": host, "tlsSecretName": secret}}
	}
	router := merge(values{"enabled": true}, ingress("ci.example", ""))
	for name, c := range map[string]struct{ given, want values }{
		"defaults": {values{}, values{
			"LOCKSTEP_CELL_URL": "http://ls-runners.here.svc", "LOCKSTEP_STATE_URL": "http://ls-state.here.svc",
			"LOCKSTEP_CELL_PUBLIC_URL": nil, "LOCKSTEP_CELL_REDIRECT_URL": nil, "LOCKSTEP_CELL_NUMBER": "0",
		}},
		"TLS and other ports": {
			values{
				"runners": values{"tls": values{"secretName": "t"}, "service": values{"port": 443}},
				"state":   values{"tls": values{"secretName": "t"}, "service": values{"port": 8443}},
			},
			values{
				"LOCKSTEP_CELL_URL": "https://ls-runners.here.svc", "LOCKSTEP_STATE_URL": "https://ls-state.here.svc:8443",
			},
		},
		"an ingress of runners": {
			values{"runners": ingress("r.example", "tls")}, values{"LOCKSTEP_CELL_PUBLIC_URL": "https://r.example"},
		},
		"an ingress of the router": {
			values{"runners": ingress("r.example", "tls"), "router": router},
			values{"LOCKSTEP_CELL_PUBLIC_URL": "http://ci.example"},
		},
		"values": {
			values{
				"runners": values{
					"cell":  values{"url": "https://a", "redirectURL": "https://b", "publicURL": "https://c"},
					"state": values{"url": "https://d"},
				},
				"router": router,
			},
			values{
				"LOCKSTEP_CELL_URL": "https://a", "LOCKSTEP_CELL_REDIRECT_URL": "https://b",
				"LOCKSTEP_CELL_PUBLIC_URL": "https://c", "LOCKSTEP_STATE_URL": "https://d",
			},
		},
		"without state": {values{"state": values{"enabled": false}}, values{"LOCKSTEP_STATE_URL": nil}},
	} {
		r := render(t, loaded, name, merge(withRunners(values{}), c.given))
		got := variablesOf(decode[appsv1.Deployment](r, "Deployment/"+runnersName))
		for variable, want := range c.want {
			if want == nil {
				require.NotContains(t, got, variable, name)
				continue
			}
			require.Equal(t, want, got[variable], "%s: %s", name, variable)
		}
	}
}

func TestPoliciesPermitWhatRunnersDial(t *testing.T) {
	t.Parallel()
	loaded := load(t)
	egress := func(name string, section values) []networkingv1.NetworkPolicyEgressRule {
		r := render(t, loaded, name, withRunners(section))
		return decode[networkingv1.NetworkPolicy](r, "NetworkPolicy/"+runnersName).Spec.Egress
	}
	ofState := egress("defaults", values{})[3]
	require.Equal(t, int32(8080), ofState.Ports[0].Port.IntVal)
	require.Equal(t, "lockstep-state", ofState.To[0].PodSelector.MatchLabels["app.kubernetes.io/name"])

	others := egress("others", values{
		"state": values{"url": "https://state.example:8443", "ports": []any{8443}},
		"artifacts": values{"kind": "s3", "s3": values{
			"endpoint": "http://minio:9000", "bucket": "b", "secretName": "s", "ports": []any{9000},
		}},
		"cell": values{"map": values{"url": "nats://map:4223", "secretName": "m", "ports": []any{4223}}},
	})
	require.Equal(t, []networkingv1.NetworkPolicyEgressRule{
		{Ports: tcp(8443)}, {Ports: tcp(9000)}, {Ports: tcp(4223)},
	}, others[3:])
}
