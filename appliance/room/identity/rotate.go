package identity

import (
	"context"

	"github.com/google/uuid"

	"signalbox/appliance/room"
	"signalbox/appliance/secret"
)

// RotateKey gives an agent a new key and changes nothing else of it (A.4): the old key is invalid before it returns. Its
// owner and an admin may. NotFound when there is no such agent.
func (d *Identity) RotateKey(ctx context.Context, by room.Actor, id uuid.UUID) (Registered, error) {
	out := Registered{Key: secret.NewRoomKey(), Rotated: true}
	hash := secret.RoomKeyHash(out.Key.Reveal())
	err := d.changeAgent(ctx, "rotate agent key", id, func(tx Tx, a *room.Agent) error {
		if err := mayManage(by, *a, false); err != nil {
			return err
		}
		if err := tx.SetRoomAgentKey(a.No, hash); err != nil {
			return err
		}
		a.KeySetAt = tx.Now()
		if err := d.updateAgent(tx, a); err != nil {
			return err
		}
		out.Agent = *a
		return d.recordAgent(ctx, tx, by, "room_agent.rotated", *a, nil)
	})
	if err != nil {
		return Registered{}, err
	}
	return out, nil
}
