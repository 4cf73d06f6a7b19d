package e2e_test

import (
	"context"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func podSpec(images ...string) v1.PodTemplateSpec {
	var template v1.PodTemplateSpec
	for i, image := range images {
		template.Spec.Containers = append(template.Spec.Containers,
			v1.Container{Name: "c" + string(rune('0'+i)), Image: image})
	}
	template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1)
	return template
}

func deploy(t *testing.T, c cluster, name string, replicas int32, template v1.PodTemplateSpec) {
	t.Helper()
	labels := map[string]string{"app": name}
	template.Labels = labels
	_, err := c.AppsV1().Deployments(c.namespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template,
			ProgressDeadlineSeconds: ptr.To[int32](5),
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

func scale(t *testing.T, c cluster, name string, replicas int32) {
	t.Helper()
	_, err := c.AppsV1().Deployments(c.namespace).UpdateScale(t.Context(), name, &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: c.namespace}, Spec: autoscalingv1.ScaleSpec{Replicas: replicas},
	}, metav1.UpdateOptions{})
	require.NoError(t, err)
}

func awaitAvailable(t *testing.T, c cluster, name string, replicas int32) {
	t.Helper()
	eventually(t, "deployment "+name+" is available", func(ctx context.Context) bool {
		d, err := c.AppsV1().Deployments(c.namespace).Get(ctx, name, metav1.GetOptions{})
		return err == nil && d.Status.ObservedGeneration == d.Generation && d.Status.Replicas == replicas &&
			d.Status.UpdatedReplicas == replicas && d.Status.AvailableReplicas == replicas
	})
}

func podsOf(t *testing.T, c cluster, app string) []v1.Pod {
	t.Helper()
	list, err := c.CoreV1().Pods(c.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	require.NoError(t, err)
	return list.Items
}

func uids(pods []v1.Pod) []types.UID {
	var out []types.UID
	for i := range pods {
		out = append(out, pods[i].UID)
	}
	slices.Sort(out)
	return out
}

func TestDeploymentRollsOutUpdatesAndStops(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	deploy(t, c, "web", 3, podSpec("nginx:1"))
	awaitAvailable(t, c, "web", 3)
	old := podsOf(t, c, "web")
	addresses := map[string]bool{}
	for _, pod := range old {
		require.NotEmpty(t, pod.Status.HostIP)
		addresses[pod.Status.PodIP] = true
	}
	require.Len(t, addresses, 3, "each pod has an address of its own")

	_, err := c.AppsV1().Deployments(c.namespace).Patch(t.Context(), "web", types.JSONPatchType,
		[]byte(`[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"nginx:2"}]`), metav1.PatchOptions{})
	require.NoError(t, err)
	awaitAvailable(t, c, "web", 3)
	// An available deployment may still have pods that terminate.
	isOld := func(id types.UID) bool { return slices.Contains(uids(old), id) }
	eventually(t, "the old pods are gone", func(context.Context) bool {
		return !slices.ContainsFunc(uids(podsOf(t, c, "web")), isOld)
	})
	for _, pod := range podsOf(t, c, "web") {
		require.Equal(t, "nginx:2", pod.Status.ContainerStatuses[0].Image)
	}

	scale(t, c, "web", 0)
	eventually(t, "no pod is left", func(context.Context) bool { return len(podsOf(t, c, "web")) == 0 })
	require.NoError(t, c.AppsV1().Deployments(c.namespace).Delete(t.Context(), "web", metav1.DeleteOptions{}))
	eventually(t, "the replica sets are collected", func(ctx context.Context) bool {
		list, err := c.AppsV1().ReplicaSets(c.namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 0
	})
}

func TestOtherWorkloads(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	labels := map[string]string{"app": "x"}
	template := podSpec("redis:7")
	template.Labels = labels
	selector := &metav1.LabelSelector{MatchLabels: labels}

	_, err := c.AppsV1().StatefulSets(c.namespace).Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: ptr.To[int32](2), Selector: selector, Template: template,
			VolumeClaimTemplates: []v1.PersistentVolumeClaim{claim("data", nil)},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = c.AppsV1().DaemonSets(c.namespace).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "agent"},
		Spec:       appsv1.DaemonSetSpec{Selector: selector, Template: template},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	job := podSpec("busybox:1")
	job.Spec.RestartPolicy = v1.RestartPolicyNever
	job.Spec.InitContainers = []v1.Container{{Name: "prepare", Image: "busybox:1"}}
	_, err = c.BatchV1().Jobs(c.namespace).Create(t.Context(),
		&batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Name: "once"},
			Spec:       batchv1.JobSpec{Template: job},
		}, metav1.CreateOptions{})
	require.NoError(t, err)

	eventually(t, "the stateful set is ready", func(ctx context.Context) bool {
		s, err := c.AppsV1().StatefulSets(c.namespace).Get(ctx, "db", metav1.GetOptions{})
		return err == nil && s.Status.AvailableReplicas == 2
	})
	eventually(t, "the daemon set is ready on both nodes", func(ctx context.Context) bool {
		d, err := c.AppsV1().DaemonSets(c.namespace).Get(ctx, "agent", metav1.GetOptions{})
		return err == nil && d.Status.NumberReady == 2
	})
	eventually(t, "the job is complete", func(ctx context.Context) bool {
		j, err := c.BatchV1().Jobs(c.namespace).Get(ctx, "once", metav1.GetOptions{})
		return err == nil && j.Status.Succeeded == 1
	})
}

func claim(name string, annotations map[string]string) v1.PersistentVolumeClaim {
	return v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources:   v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
}

func TestVolumesAreProvisionedProtectedAndReclaimed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	claims := c.CoreV1().PersistentVolumeClaims(c.namespace)
	home, broken := claim("home", nil), claim("broken",
		map[string]string{"kubelab.lockstep.dev/fault": "provision-failure"})
	for _, pvc := range []v1.PersistentVolumeClaim{home, broken} {
		_, err := claims.Create(t.Context(), &pvc, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	template := podSpec("nginx:1")
	template.Spec.Volumes = []v1.Volume{{Name: "home", VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "home"},
	}}}
	deploy(t, c, "ide", 1, template)
	awaitAvailable(t, c, "ide", 1)
	var bound *v1.PersistentVolumeClaim
	eventually(t, "the claim is bound", func(ctx context.Context) bool {
		var err error
		bound, err = claims.Get(ctx, "home", metav1.GetOptions{})
		return err == nil && bound.Status.Phase == v1.ClaimBound
	})
	require.Equal(t, "standard", *bound.Spec.StorageClassName)

	eventually(t, "the failure is reported as an event", func(ctx context.Context) bool {
		events, err := c.CoreV1().
			Events(c.namespace).
			List(ctx, metav1.ListOptions{FieldSelector: "reason=ProvisioningFailed"})
		return err == nil && len(events.Items) > 0
	})
	pending, err := claims.Get(t.Context(), "broken", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, v1.ClaimPending, pending.Status.Phase)
	_, err = claims.Patch(t.Context(), "broken", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"kubelab.lockstep.dev/fault":null}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	eventually(t, "the healed claim is bound", func(ctx context.Context) bool {
		pvc, err := claims.Get(ctx, "broken", metav1.GetOptions{})
		return err == nil && pvc.Status.Phase == v1.ClaimBound
	})

	require.NoError(t, claims.Delete(t.Context(), "home", metav1.DeleteOptions{}))
	used, err := claims.Get(t.Context(), "home", metav1.GetOptions{})
	require.NoError(t, err, "a claim in use is protected")
	require.NotNil(t, used.DeletionTimestamp)
	scale(t, c, "ide", 0)
	eventually(t, "claim and volume are gone", func(ctx context.Context) bool {
		_, claimErr := claims.Get(ctx, "home", metav1.GetOptions{})
		_, volumeErr := c.CoreV1().PersistentVolumes().Get(ctx, bound.Spec.VolumeName, metav1.GetOptions{})
		return apierrors.IsNotFound(claimErr) && apierrors.IsNotFound(volumeErr)
	})
}

func TestNamespaceIsDeletedWithItsObjects(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	template := podSpec("nginx:1")
	template.Spec.Volumes = []v1.Volume{{Name: "home", VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "home"},
	}}}
	pvc := claim("home", nil)
	_, err := c.CoreV1().PersistentVolumeClaims(c.namespace).Create(t.Context(), &pvc, metav1.CreateOptions{})
	require.NoError(t, err)
	deploy(t, c, "web", 2, template)
	awaitAvailable(t, c, "web", 2)
	require.NoError(t, c.CoreV1().Namespaces().Delete(t.Context(), c.namespace, metav1.DeleteOptions{}))
	eventually(t, "the namespace is gone", func(ctx context.Context) bool {
		_, err := c.CoreV1().Namespaces().Get(ctx, c.namespace, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func TestQuotaIsEnforcedAndFreed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	// A pod that is created during the first count of the quota may be counted minutes later.
	eventually(t, "the root certificate is there", func(ctx context.Context) bool {
		_, err := c.CoreV1().ConfigMaps(c.namespace).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err == nil
	})
	_, err := c.CoreV1().ResourceQuotas(c.namespace).Create(t.Context(), &v1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "q"},
		Spec:       v1.ResourceQuotaSpec{Hard: v1.ResourceList{v1.ResourceConfigMaps: resource.MustParse("2")}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	eventually(t, "the quota counts the root certificate", func(ctx context.Context) bool {
		q, err := c.CoreV1().ResourceQuotas(c.namespace).Get(ctx, "q", metav1.GetOptions{})
		used := q.Status.Used[v1.ResourceConfigMaps]
		return err == nil && used.Value() == 1
	})
	maps := c.CoreV1().ConfigMaps(c.namespace)
	create := func(name string) error {
		_, err := maps.Create(t.Context(), &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	require.NoError(t, create("one"))
	// The API server may learn of the quota after the controller has counted.
	created := []string{"one"}
	var refusal error
	eventually(t, "the quota refuses more", func(context.Context) bool {
		name := "more-" + strconv.Itoa(len(created))
		if refusal = create(name); refusal == nil {
			created = append(created, name)
		}
		return refusal != nil
	})
	require.ErrorContains(t, refusal, "exceeded quota")
	for _, name := range created {
		require.NoError(t, maps.Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	eventually(t, "the quota is freed", func(context.Context) bool { return create("two") == nil })
}

func TestPodSecurityIsEnforced(t *testing.T) {
	t.Parallel()
	p, err := shared()
	require.NoError(t, err)
	c := namespaceIn(t, p.client(t), map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	_, err = c.CoreV1().Pods(c.namespace).Create(t.Context(),
		&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: podSpec("nginx:1").Spec}, metav1.CreateOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, "PodSecurity")
}

func TestServicesDisruptionBudgetsAndTokens(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	deploy(t, c, "web", 2, podSpec("nginx:1"))
	_, err := c.CoreV1().Services(c.namespace).Create(t.Context(), &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: v1.ServiceSpec{
			Selector: map[string]string{"app": "web"},
			Ports:    []v1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(80)}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = c.PolicyV1().PodDisruptionBudgets(c.namespace).Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt32(2)),
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	awaitAvailable(t, c, "web", 2)

	eventually(t, "both pods are endpoints", func(ctx context.Context) bool {
		slices, err := c.DiscoveryV1().EndpointSlices(c.namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(slices.Items) == 1 && len(slices.Items[0].Endpoints) == 2
	})
	eventually(t, "the budget is counted", func(ctx context.Context) bool {
		b, err := c.PolicyV1().PodDisruptionBudgets(c.namespace).Get(ctx, "web", metav1.GetOptions{})
		return err == nil && b.Status.CurrentHealthy == 2
	})
	pod := podsOf(t, c, "web")[0]
	err = c.PolicyV1().
		Evictions(c.namespace).
		Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: c.namespace}})
	require.True(t, apierrors.IsTooManyRequests(err), "%v", err)

	require.True(t, slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.Projected != nil }),
		"a token is mounted")
	secret := &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "token", Annotations: map[string]string{v1.ServiceAccountNameKey: "default"}},
		Type:       v1.SecretTypeServiceAccountToken,
	}
	_, err = c.CoreV1().Secrets(c.namespace).Create(t.Context(), secret, metav1.CreateOptions{})
	require.NoError(t, err)
	eventually(t, "the token is signed", func(ctx context.Context) bool {
		s, err := c.CoreV1().Secrets(c.namespace).Get(ctx, "token", metav1.GetOptions{})
		return err == nil && len(s.Data[v1.ServiceAccountTokenKey]) > 0
	})
}
