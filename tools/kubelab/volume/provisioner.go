package volume

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

const (
	// ClassName is the name of the default StorageClass.
	ClassName = "standard"
	// ProvisionFailure is the fault that keeps a claim pending.
	ProvisionFailure = "provision-failure"

	provisionerName       = "kubelab.lockstep.dev/volumes"
	faultAnnotation       = "kubelab.lockstep.dev/fault"
	provisionerAnnotation = "volume.kubernetes.io/storage-provisioner"
	provisionedAnnotation = "pv.kubernetes.io/provisioned-by"
)

// EnsureClass creates the default StorageClass unless it exists.
func EnsureClass(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{
			Name:        ClassName,
			Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"},
		},
		Provisioner:       provisionerName,
		ReclaimPolicy:     ptr.To(v1.PersistentVolumeReclaimDelete),
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingImmediate),
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create the storage class %s: %w", ClassName, err)
	}
	return nil
}

// key names a claim, or a volume when the namespace is empty.
type key struct{ namespace, name string }

// Provisioner makes and deletes volumes.
type Provisioner struct {
	client   kubernetes.Interface
	claims   corelisters.PersistentVolumeClaimLister
	volumes  corelisters.PersistentVolumeLister
	factory  informers.SharedInformerFactory
	queue    workqueue.TypedRateLimitingInterface[key]
	recorder record.EventRecorder
	events   record.EventBroadcaster
}

// NewProvisioner prepares a provisioner that works through client.
func NewProvisioner(client kubernetes.Interface) (*Provisioner, error) {
	factory := informers.NewSharedInformerFactory(client, 0)
	events := record.NewBroadcaster()
	p := &Provisioner{
		client:  client,
		claims:  factory.Core().V1().PersistentVolumeClaims().Lister(),
		volumes: factory.Core().V1().PersistentVolumes().Lister(),
		factory: factory,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[key](50*time.Millisecond, 10*time.Second)),
		events:   events,
		recorder: events.NewRecorder(scheme.Scheme, v1.EventSource{Component: provisionerName}),
	}
	enqueue := func(object any) {
		if o, ok := object.(metav1.Object); ok {
			p.queue.Add(key{namespace: o.GetNamespace(), name: o.GetName()})
		}
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: enqueue, UpdateFunc: func(_, object any) { enqueue(object) }}
	for _, informer := range []cache.SharedIndexInformer{
		factory.Core().V1().PersistentVolumeClaims().Informer(),
		factory.Core().V1().PersistentVolumes().Informer(),
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return nil, fmt.Errorf("watch volumes: %w", err)
		}
	}
	return p, nil
}

// Run works until ctx ends.
func (p *Provisioner) Run(ctx context.Context) error {
	p.events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: p.client.CoreV1().Events("")})
	defer p.events.Shutdown()
	p.factory.Start(ctx.Done())
	defer p.factory.Shutdown()
	p.factory.WaitForCacheSync(ctx.Done())
	stop := context.AfterFunc(ctx, p.queue.ShutDown)
	defer stop()
	for {
		k, down := p.queue.Get()
		if down {
			return nil
		}
		if err := p.reconcile(ctx, k); err != nil {
			klog.ErrorS(err, "Provisioning failed; retrying", "namespace", k.namespace, "name", k.name)
			p.queue.AddRateLimited(k)
		} else {
			p.queue.Forget(k)
		}
		p.queue.Done(k)
	}
}

func (p *Provisioner) reconcile(ctx context.Context, k key) error {
	var err error
	if k.namespace == "" {
		err = p.reclaim(ctx, k.name)
	} else {
		err = p.provision(ctx, k)
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

var errProvision = errors.New("provisioning fails because of the annotation " + faultAnnotation)

func (p *Provisioner) provision(ctx context.Context, k key) error {
	claim, err := p.claims.PersistentVolumeClaims(k.namespace).Get(k.name)
	if err != nil {
		return fmt.Errorf("look up claim %s/%s: %w", k.namespace, k.name, err)
	}
	if claim.Annotations[provisionerAnnotation] != provisionerName || claim.Spec.VolumeName != "" ||
		claim.DeletionTimestamp != nil {
		return nil
	}
	if claim.Annotations[faultAnnotation] == ProvisionFailure {
		p.recorder.Event(claim, v1.EventTypeWarning, "ProvisioningFailed", errProvision.Error())
		return nil
	}
	_, err = p.client.CoreV1().PersistentVolumes().Create(ctx, volumeFor(claim), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create the volume of claim %s/%s: %w", k.namespace, k.name, err)
	}
	return nil
}

func volumeFor(claim *v1.PersistentVolumeClaim) *v1.PersistentVolume {
	name := "pvc-" + string(claim.UID)
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{provisionedAnnotation: provisionerName}},
		Spec: v1.PersistentVolumeSpec{
			Capacity: v1.ResourceList{
				v1.ResourceStorage: claim.Spec.Resources.Requests[v1.ResourceStorage],
			},
			AccessModes:                   claim.Spec.AccessModes,
			VolumeMode:                    claim.Spec.VolumeMode,
			PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete,
			StorageClassName:              ptr.Deref(claim.Spec.StorageClassName, ""),
			ClaimRef: &v1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim",
				Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
			PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{
				Path: "/var/lib/kubelab/volumes/" + name,
				Type: ptr.To(v1.HostPathDirectoryOrCreate),
			}},
		},
	}
}

func (p *Provisioner) reclaim(ctx context.Context, name string) error {
	volume, err := p.volumes.Get(name)
	if err != nil {
		return fmt.Errorf("look up volume %s: %w", name, err)
	}
	if volume.Annotations[provisionedAnnotation] != provisionerName || volume.DeletionTimestamp != nil ||
		volume.Status.Phase != v1.VolumeReleased ||
		volume.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimDelete {
		return nil
	}
	if err := p.client.CoreV1().PersistentVolumes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete volume %s: %w", name, err)
	}
	return nil
}
