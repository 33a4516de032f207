package directory

import "context"

// purgeSlice is how many rows one transaction of PurgeDeleted removes.
const purgeSlice = 300

// PurgeDeleted removes what deleted rooms left, in slices of the upkeep lane, and returns how many rows went. Files whose
// rows go are the media sweep's to remove. It stops between slices when ctx ends.
func (d *Directory) PurgeDeleted(ctx context.Context) (removed int, err error) {
	for {
		var rooms []int64
		err := d.upkeep.View(ctx, func(tx ReadTx) (err error) {
			rooms, err = tx.DirDeleted(1)
			return err
		})
		if err != nil || len(rooms) == 0 {
			return removed, err
		}
		for done := false; !done; {
			var n int
			err := d.upkeep.Update(ctx, "purge deleted room", func(tx Tx) (err error) {
				n, done, err = tx.DirPurgeRoom(rooms[0], purgeSlice)
				return err
			})
			if err != nil {
				return removed, err
			}
			removed += n
		}
	}
}
