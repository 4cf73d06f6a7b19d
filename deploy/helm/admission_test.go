package helm_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	appsv1 "k8s.io/api/apps/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

const admissionName = releaseName + "-admission"

// withAdmission returns the values of a release with the service admission.
func withAdmission(section values) values {
	return merge(values{"admission": values{"enabled": true}}, values{"admission": section})
}

func TestJobsWaitForAdmissionIfTheServiceIsOn(t *testing.T) {
	t.Parallel()
	loaded := load(t)
	for name, c := range map[string]struct {
		given values
		want  string // of the variable; empty if it is not set
	}{
		"off": {values{}, ""},
		"on":  {withAdmission(values{}), "true"},
	} {
		r := render(t, loaded, name, merge(withRunners(values{}), c.given))
		got := variablesOf(decode[appsv1.Deployment](r, "Deployment/"+runnersName))
		require.Equal(t, c.want, got["LOCKSTEP_ADMISSION_ENABLED"], name)
	}
}

func TestControllersKnowTheAddressOfAdmission(t *testing.T) {
	t.Parallel()
	loaded := load(t)
	ingress := values{"enabled": true, "host": "admission.example", "tlsSecretName": "tls"}
	for want, section := range map[string]values{
		"http://ls-admission.here.svc":  {},
		"https://ls-admission.here.svc": {"tls": values{"secretName": "t"}, "service": values{"port": 443}},
		"https://admission.example":     {"ingress": ingress},
		"https://a.example/ci":          {"ingress": ingress, "cell": values{"publicURL": "https://a.example/ci"}},
	} {
		r := render(t, loaded, want, withAdmission(section))
		got := variablesOf(decode[appsv1.Deployment](r, "Deployment/"+admissionName))
		require.Equal(t, want, got["LOCKSTEP_CELL_PUBLIC_URL"])
		require.NotContains(t, got, "LOCKSTEP_CONTROLLERS_ALLOW_NETWORKS", "only public addresses by default")
	}
}

func TestAdmissionReachesControllers(t *testing.T) {
	t.Parallel()
	loaded := load(t)
	for name, c := range map[string]struct {
		controllers values
		ports       []int32
		networks    string
	}{
		"defaults": {values{}, []int32{443}, ""},
		"in the cluster": {
			values{"ports": []any{8443, 9443}, "allowNetworks": []any{"10.96.0.0/12", "fd00::/8"}},
			[]int32{8443, 9443},
			"10.96.0.0/12,fd00::/8",
		},
	} {
		r := render(t, loaded, name, withAdmission(values{"controllers": c.controllers}))
		policy := decode[networkingv1.NetworkPolicy](r, "NetworkPolicy/"+admissionName)
		var ports []networkingv1.NetworkPolicyPort
		for _, port := range c.ports {
			ports = append(ports, tcp(port)...)
		}
		require.Equal(t, networkingv1.NetworkPolicyEgressRule{Ports: ports}, policy.Spec.Egress[len(policy.Spec.Egress)-1])
		require.Empty(t, policy.Spec.Ingress[0].From, "controllers outside of the cluster answer later")
		got := variablesOf(decode[appsv1.Deployment](r, "Deployment/"+admissionName))
		require.Equal(t, c.networks, got["LOCKSTEP_CONTROLLERS_ALLOW_NETWORKS"], name)
	}
}

func TestNetworksOfControllersAreChecked(t *testing.T) {
	t.Parallel()
	given := withAdmission(values{"controllers": values{"allowNetworks": []any{"controllers.example"}}})
	_, err := util.ToRenderValues(load(t), given, common.ReleaseOptions{Name: releaseName, Namespace: "here"},
		common.DefaultCapabilities)
	require.ErrorContains(t, err, "values don't meet the specifications of the schema")
}
